use super::*;
use crate::objects::Symbols;

const IMAGE: &str = "ffffffff81000000 T _stext\nffffffff81000100 t helper\nffffffff81000200 T _etext\n";
/// In the image, in a module, in a BPF program.
const ASKED: [u64; 3] = [0xffff_ffff_8100_0110, 0xffff_ffff_c000_0010, 0xffff_ffff_c010_0010];
const SECOND: u64 = 1_000_000_000;

/// A kernel that tests write themselves.
struct Kernel {
    folder: tempfile::TempDir,
    names: KernelNames,
    symbols: Symbols,
}

impl Kernel {
    fn new(keeps_list: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let lists = Lists { symbols: path("kallsyms"), modules: path("modules") };
        let symbols = Symbols::new(1 << 28);
        if keeps_list {
            symbols.memory.share_with_names();
        }
        Self { names: KernelNames { lists, ..KernelNames::default() }, folder, symbols }
    }

    /// One module and one BPF program at the places of those before.
    fn loads(&self, module: &str, program: &str) {
        let list = format!(
            "{IMAGE}ffffffffc0000000 t {module}_work\t[{module}]\nffffffffc0100000 t bpf_prog_{program}\t[bpf]\n"
        );
        std::fs::write(self.folder.path().join("kallsyms"), list).unwrap();
        std::fs::write(self.folder.path().join("modules"), format!("{module} 16384 0 - Live 0x0\n")).unwrap();
    }

    /// What is said of addresses that take next to no time.
    fn says(&self, second: u64, addresses: &[u64]) -> Vec<String> {
        let asked: Vec<(u64, f64)> = addresses.iter().map(|&address| (address, 0.001)).collect();
        let names = self.names.names_at(second * SECOND, &asked, &self.symbols.names, &mut || {});
        let text = |name| match name {
            KernelName::Function(name) => name.to_string(),
            other => format!("{other:?}"),
        };
        names.into_iter().map(text).collect()
    }
}

/// Ten megabytes of text cost as much as a hundred objects.
#[test]
fn the_list_is_read_in_pieces_and_there_is_a_breath_before_each() {
    for keeps_list in [false, true] {
        let kernel = Kernel::new(keeps_list);
        let mut list = IMAGE.to_owned();
        (0..100_000u64).for_each(|at| {
            list += &format!("{:x} t function_{at}\n", 0xffff_ffff_c000_0000 + 16 * at);
        });
        std::fs::write(kernel.folder.path().join("kallsyms"), &list).unwrap();
        std::fs::write(kernel.folder.path().join("modules"), "").unwrap();
        let mut breaths = 0;
        let asked = [(0xffff_ffff_c000_0000 + 16 * 99_999, 0.001)];
        let names = kernel.names.names_at(SECOND, &asked, &kernel.symbols.names, &mut || breaths += 1);
        assert_eq!(names, [KernelName::Function("function_99999".into())]);
        let pieces = list.len() / PIECE;
        assert!((pieces..=2 * pieces + 2).contains(&breaths), "{breaths} breaths for {pieces} pieces");
    }
}

#[test]
fn what_took_the_place_of_a_module_or_a_program_has_its_own_name() {
    for keeps_list in [false, true] {
        let kernel = Kernel::new(keeps_list);
        kernel.loads("one", "A");
        let first = ["helper", "one_work [one]", "bpf_prog_A [bpf]"];
        assert_eq!(kernel.says(1, &ASKED), first);
        assert_eq!(kernel.says(40, &ASKED), first);
        // Nothing tells of another program: the old name is not believed for long.
        kernel.loads("one", "B");
        assert_eq!(kernel.says(60, &ASKED), ["helper", "one_work [one]", "bpf_prog_B [bpf]"]);
        // Another module is seen at once, and the list is read when that is not too soon.
        kernel.loads("two", "C");
        assert_eq!(kernel.says(61, &ASKED), ["helper", "Later", "Later"]);
        assert_eq!(kernel.says(90, &ASKED), ["helper", "two_work [two]", "bpf_prog_C [bpf]"]);
    }
}

#[test]
fn what_was_not_listed_is_looked_for_again_and_a_module_ends_with_its_last_page() {
    for keeps_list in [false, true] {
        let kernel = Kernel::new(keeps_list);
        kernel.loads("one", "A");
        let [inside, behind, far] = [0xffff_ffff_c010_0020, 0xffff_ffff_c010_0fff, 0xffff_ffff_c014_0000];
        assert_eq!(kernel.says(1, &[inside, far]), ["bpf_prog_A [bpf]", "Unlisted"]);
        assert_eq!(kernel.says(2, &[behind, far]), ["bpf_prog_A [bpf]", "Unlisted"]);
        let list = format!("{IMAGE}ffffffffc0140000 t late\t[late]\n");
        std::fs::write(kernel.folder.path().join("kallsyms"), list).unwrap();
        assert_eq!(kernel.says(70, &[far]), ["late [late]"]);
        let known = kernel.names.lock();
        assert!(known.functions.values().all(|function| function.end <= far + 0x1000));
    }
}

#[test]
fn a_list_that_stays_tells_of_the_image_for_ever() {
    let kernel = Kernel::new(true);
    kernel.loads("one", "A");
    assert_eq!(kernel.says(1, &ASKED[1..2]), ["one_work [one]"]);
    let sources = || kernel.symbols.names.counts().sources;
    assert_eq!(kernel.says(2_000, &ASKED[..1]), ["helper"], "which was not met before");
    assert_eq!(sources(), 1);
    assert_eq!(kernel.says(2_000, &ASKED[1..2]), ["one_work [one]"]);
    assert_eq!(sources(), 2, "a module may have gone");
}
