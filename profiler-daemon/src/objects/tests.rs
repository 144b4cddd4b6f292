use std::fs::File;
use std::os::unix::fs::MetadataExt;

use profiler_core::elf::ElfImage;
use profiler_core::machine::Machine;
use profiler_core::process::ProcessTable;
use profiler_core::record::FileId;

use super::*;
use crate::opener::{Mount, Opener, Wait};

fn store() -> ObjectStore {
    ObjectStore::new(&Symbols::new(1 << 28))
}

fn mapping(path: &Path, inode: u64) -> Mapped {
    let file = FileId { major: 0, minor: 0, inode, generation: 0 };
    let path = path.to_string_lossy().into_owned();
    Mapped { pid: std::process::id(), start: 0x1000, len: 0x1000, file_offset: 0, file, path }
}

fn reason(store: &ObjectStore, loaded: &LoadedObject) -> Missing {
    match &store.object(loaded.id).unwrap().content {
        Content::Missing(reason) => reason.clone(),
        _ => panic!("the file was opened"),
    }
}

#[test]
fn a_file_is_opened_once_and_parsed() {
    let own = std::env::current_exe().unwrap();
    let inode = std::fs::metadata(&own).unwrap().ino();
    let mut store = store();
    let first = store.load(&mapping(&own, inode));
    assert!(first.image.is_some());
    assert_eq!(store.load(&mapping(&own, inode)).id, first.id);
}

#[test]
fn deleted_and_replaced_files_are_told_apart() {
    let mut store = store();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lib.so");
    let deleted = store.load(&mapping(&path, 5));
    assert_eq!(reason(&store, &deleted), Missing::Deleted);
    std::fs::write(&path, b"another").unwrap();
    let replaced = store.load(&mapping(&path, 6));
    assert_eq!(reason(&store, &replaced), Missing::Replaced);
}

#[test]
fn a_file_made_for_another_machine_is_of_no_use_and_says_so() {
    const E_MACHINE: usize = 18;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lib.so");
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    // The other of the two that can be unwound, and one that cannot.
    let other = if Machine::HOST == Machine::X86_64 { 183u16 } else { 62 };
    for machine in [other, 243] {
        bytes[E_MACHINE..E_MACHINE + 2].copy_from_slice(&machine.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let mut store = store();
        let loaded = store.load(&mapping(&path, 0));
        assert!(loaded.image.is_none());
        assert_eq!(reason(&store, &loaded), Missing::OtherMachine);
    }
}

#[test]
fn code_without_a_file_is_unknown() {
    let loaded = store().load(&mapping(Path::new("//anon"), 0));
    assert_eq!(loaded.id, ObjectId::UNKNOWN);
}

#[test]
fn a_file_that_is_no_object_is_memory_of_its_process_and_a_damaged_object_stays_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared");
    let mut store = store();
    for bytes in [&b""[..], b"\x7fE", b"MZ and more than that"] {
        std::fs::write(&path, bytes).unwrap();
        let loaded = store.load(&mapping(&path, 0));
        assert!(loaded.id == ObjectId::UNKNOWN && loaded.image.is_none(), "{bytes:?}");
    }
    std::fs::write(&path, b"\x7fELF and no more").unwrap();
    let damaged = store.load(&mapping(&path, 0));
    assert!(damaged.image.is_none() && is_open(&store, &damaged));
}

#[test]
fn code_that_was_moved_away_from_its_file_is_found_by_the_parts_around_it() {
    let own = std::env::current_exe().unwrap();
    let image = ElfImage::parse_bytes(&std::fs::read(&own).unwrap()).unwrap();
    let text = image.segments.iter().position(|segment| segment.executable).unwrap();
    const BASE: u64 = 0x5555_0000_0000;
    let part = |at: usize| {
        let segment = image.segments[at];
        let page = segment.file_offset & !0xfff;
        let start = BASE + (segment.svma & !0xfff);
        let len = segment.file_offset + segment.file_len - page;
        Mapped { start, len, file_offset: page, ..mapping(&own, 7) }
    };
    let around: Vec<Mapped> = (0..image.segments.len())
        .filter(|&at| at != text && image.segments[at].file_len > 0)
        .map(part)
        .collect();
    let whole = part(text);
    let nameless = |start: u64| Mapped { start, ..mapping(Path::new("//anon"), 0) };
    let around: Vec<Mapped> = around
        .into_iter()
        .map(|part| Mapped {
            file: FileId { inode: std::fs::metadata(&own).unwrap().ino(), ..part.file },
            ..part
        })
        .collect();
    let mut store = store();
    let found = store.origin(&nameless(whole.start + 0x1000), &around).unwrap();
    assert_eq!((found.path, found.file_offset), (whole.path, whole.file_offset + 0x1000));
    for (start, around) in [
        (BASE + 0x7000_0000, &around[..]), // beside the program
        (whole.start + 0x1000, &[]),
        (whole.start + 0x1000, &[Mapped { start: BASE - 0x7000_0000, ..around[0].clone() }]), // of another load
    ] {
        assert_eq!(store.origin(&nameless(start), around), None, "{start:#x}");
    }
}

#[test]
fn a_process_of_32_bits_has_not_our_vdso() {
    for wide_first in [true, false] {
        let mut store = store();
        let mut at = |start: u64| store.load(&Mapped { start, ..mapping(Path::new(VDSO), 0) });
        let (narrow, wide) = match wide_first {
            true => {
                let wide = at(0x7ffc_0000_0000);
                (at(0xf7f0_0000), wide)
            }
            false => (at(0xf7f0_0000), at(0x7ffc_0000_0000)),
        };
        assert!(wide.image.is_some() && narrow.image.is_none());
        assert_eq!(reason(&store, &narrow), Missing::NoVdso);
    }
}

/// Has a mount hang until the sender goes.
fn hang(opener: &Opener, mount: &Mount) -> std::sync::mpsc::Sender<()> {
    let (sender, released) = std::sync::mpsc::channel::<()>();
    let hung = opener.call(mount, Wait::Sampling, move || _ = released.recv());
    assert!(hung.is_err() && opener.is_stalled(mount));
    sender
}

#[test]
fn a_file_whose_mount_hangs_is_missing_until_it_answers() {
    let own = std::env::current_exe().unwrap();
    let mapped = mapping(&own, std::fs::metadata(&own).unwrap().ino());
    let mount = Mount::Device { major: mapped.file.major, minor: mapped.file.minor };
    let mut store = store();
    let release = hang(store.opener(), &mount);
    let first = store.load(&mapped);
    assert!(first.image.is_none() && reason(&store, &first) == Missing::NoAnswer(mount.clone()));
    for _ in 0..2 * MOST_TRIES {
        assert_eq!(store.load(&mapped).id, first.id, "frames refer to it");
    }
    assert!(store.take_answered().is_empty());
    let elsewhere = Mapped { file: FileId { minor: 7, ..mapped.file }, ..mapped.clone() };
    assert!(store.load(&elsewhere).image.is_some(), "other mounts answer");
    drop(release);
    while store.take_answered() != [mapped.pid] {
        std::thread::yield_now();
    }
    while store.load(&mapped).image.is_none() {
        std::thread::yield_now();
    }
    assert_ne!(store.load(&mapped).id, first.id);
    assert_eq!(reason(&store, &first), Missing::NoAnswer(mount));
}

fn is_open(store: &ObjectStore, loaded: &LoadedObject) -> bool {
    matches!(store.object(loaded.id).unwrap().content, Content::File(_))
}

#[test]
fn a_file_of_two_names_is_one_object_and_a_copy_of_the_same_build_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let paths = ["link", "copy"].map(|name| folder.path().join(name));
    std::fs::hard_link(&path, &paths[0]).unwrap();
    std::fs::copy(&path, &paths[1]).unwrap();
    let symbols = Symbols::new(1 << 28);
    let [mut store, mut other_store] = [(); 2].map(|()| ObjectStore::new(&symbols));
    let file = store.load(&mapping(&path, 0));
    let [link, copy] = paths.each_ref().map(|path| store.load(&mapping(path, 0)));
    assert_eq!(link.id, file.id);
    assert_ne!(copy.id, file.id);
    let image = |loaded: &LoadedObject| loaded.image.clone().unwrap();
    assert_eq!(image(&copy).build_id, image(&file).build_id);
    // Of another target, too.
    let [other_link, other_copy] = paths.each_ref().map(|path| other_store.load(&mapping(path, 0)));
    let names =
        |store: &ObjectStore, loaded: &LoadedObject| Arc::clone(&store.object(loaded.id).unwrap().names);
    let of_file = names(&store, &file);
    assert!(Arc::ptr_eq(&names(&other_store, &other_link), &of_file));
    assert!(!Arc::ptr_eq(&names(&other_store, &other_copy), &of_file));
}

#[test]
fn a_file_that_was_missing_is_another_object_once_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let mut store = store();
    let missing = store.load(&mapping(&path, 0));
    assert_eq!(reason(&store, &missing), Missing::Deleted);
    assert_eq!(store.load(&mapping(&path, 0)).id, missing.id);
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let found = store.load(&mapping(&path, 0));
    // Addresses in the missing one count from another byte.
    assert_ne!(found.id, missing.id);
    assert!(is_open(&store, &found) && found.image.is_some());
    assert_eq!(store.load(&mapping(&path, 0)).id, found.id);
}

#[test]
fn a_file_that_was_written_into_lends_no_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let mut store = store();
    let loaded = store.load(&mapping(&path, 0));
    assert_eq!(store.object(loaded.id).unwrap().missing(), None);
    std::fs::write(&path, b"something else").unwrap();
    assert_eq!(store.object(loaded.id).unwrap().missing(), Some(Missing::Overwritten));
}

#[test]
fn a_file_that_was_rewritten_in_place_is_another_object_for_who_maps_it_then() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    std::fs::write(&path, &own).unwrap();
    let mut store = store();
    let first = store.load(&mapping(&path, 0));
    assert_eq!(store.load(&mapping(&path, 0)).id, first.id);
    std::fs::write(&path, [own, vec![0; 8]].concat()).unwrap();
    let second = store.load(&mapping(&path, 0));
    assert_ne!(second.id, first.id);
    assert_eq!(store.object(second.id).unwrap().missing(), None);
    assert_eq!(store.object(first.id).unwrap().missing(), Some(Missing::Overwritten));
    let names = |id| Arc::as_ptr(&store.object(id).unwrap().names);
    assert!(!std::ptr::eq(names(first.id), names(second.id)));
    assert_eq!(store.load(&mapping(&path, 0)).id, second.id);
    // What cannot be unwound any more is another, too.
    std::fs::write(&path, b"no program").unwrap();
    let third = store.load(&mapping(&path, 0));
    assert!(third.id != second.id && third.image.is_none());
}

#[test]
fn a_file_that_says_it_has_millions_of_sections_is_read_no_further() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(2 << 30).unwrap(); // a hole
    file.write_all_at(&(1u64 << 30).to_le_bytes(), 0x28).unwrap(); // e_shoff
    file.write_all_at(&[0; 2], 0x3c).unwrap(); // e_shnum: the first section tells
    file.write_all_at(&(16u64 << 20).to_le_bytes(), (1 << 30) + 0x20).unwrap();
    let resident_kib = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    };
    let before = resident_kib();
    let mut store = store();
    let loaded = store.load(&mapping(&path, 0));
    assert!(loaded.image.is_some_and(|image| !image.segments.is_empty()), "it can be mapped all the same");
    let grown = resident_kib() - before;
    assert!(grown < 256 << 10, "{grown} KiB");
}

#[test]
fn what_nothing_refers_to_is_forgotten_and_its_place_given_away() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = store();
    let load =
        |store: &mut ObjectStore, i: usize| store.load(&mapping(&folder.path().join(i.to_string()), 0)).id;
    let ids: Vec<ObjectId> = (0..CROWD).map(|i| load(&mut store, i)).collect();
    assert!(store.is_crowded());
    store.keep_only(&[ids[3], ids[7]].into_iter().collect());
    assert!(!store.is_crowded() && store.object(ids[3]).is_some() && store.object(ids[4]).is_none());
    assert_eq!(load(&mut store, 3), ids[3]);
    let new = load(&mut store, CROWD + 1);
    assert!(new != ids[3] && new != ids[7] && ids.contains(&new));
    assert_eq!(store.objects_seen, CROWD as u64 + 1);
}

#[test]
fn unwind_tables_share_the_room_by_weight() {
    let folder = tempfile::tempdir().unwrap();
    let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let paths = ["light", "heavy"].map(|name| folder.path().join(name));
    for (path, more) in paths.iter().zip([0, 8]) {
        std::fs::write(path, [own.clone(), vec![0; more]].concat()).unwrap();
    }
    let tables = ElfImage::parse_bytes(&own).unwrap().tables_bytes();
    let mut store = ObjectStore::new(&Symbols::new(tables + tables / 2));
    let mut processes = ProcessTable::default();
    processes.adopt(1, "a");
    let mut map = |store: &mut ObjectStore, at: usize| {
        let mapped = Mapped { pid: 1, start: (at as u64 + 1) << 40, len: 1 << 30, ..mapping(&paths[at], 0) };
        processes.mapped(&mapped, |mapped| store.load(mapped));
        store.load(&mapped)
    };
    let [light, heavy] = [map(&mut store, 0), map(&mut store, 1)];
    let entry = light.image.as_ref().unwrap().entry;
    assert!(light.image.as_ref().unwrap().function_start(entry).is_some());
    light.image.as_ref().unwrap().read_tables();
    heavy.image.as_ref().unwrap().read_tables();
    let weights = [(light.id, 1.0), (heavy.id, 2.0)];
    assert!(store.rebalance(|| weights.into_iter().collect(), &mut processes));
    drop((light.image, heavy.image));
    let start = |store: &ObjectStore, id| store.object(id).unwrap().image.as_ref()?.function_start(entry);
    assert!(start(&store, heavy.id).is_some() && start(&store, light.id).is_none());
    assert!(store.memory.peak() <= store.memory.cap());
    assert_eq!((store.memory.evictions(), store.memory.rereads()), (1, 1));
    assert!(!store.rebalance(|| weights.into_iter().collect(), &mut processes), "nothing changes");
    let weights = [(light.id, 3.0), (heavy.id, 2.0)];
    assert!(store.rebalance(|| weights.into_iter().collect(), &mut processes));
    assert!(start(&store, light.id).is_some() && start(&store, heavy.id).is_none());
    store.release_tables();
    assert_eq!(store.memory.left(), store.memory.cap());
}

/// A file of nothing but a compressed section `.debug_frame` that says it has so many bytes.
fn compressed_tables(unpacked: u64) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.debug_frame\0";
    const CONTENT_AT: u64 = 0x40 + 3 * 0x40;
    let mut file = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    file.truncate(0x40);
    file[0x20..0x28].fill(0); // e_phoff
    file[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes()); // e_shoff
    file[0x34..0x40].copy_from_slice(&[64, 56, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
    let section = |name: u32, kind: u32, flags: u64, at: u64, len: u64| {
        let numbers = [flags, 0, at, len, 0, 1, 0].map(u64::to_le_bytes).concat();
        [&name.to_le_bytes()[..], &kind.to_le_bytes(), &numbers].concat()
    };
    let packed = [1u64, unpacked, 8].map(u64::to_le_bytes).concat();
    let names = section(0, 3, 0, CONTENT_AT + packed.len() as u64, NAMES.len() as u64);
    [
        file,
        vec![0; 0x40],
        section(1, 1, 1 << 11, CONTENT_AT, packed.len() as u64),
        names,
        packed,
        NAMES.to_vec(),
    ]
    .concat()
}

#[test]
fn tables_that_unpack_to_more_than_there_is_room_for_are_refused() {
    const UNPACKED: u64 = 8 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::write(&path, compressed_tables(UNPACKED)).unwrap();
    for (room, is_refused) in [(UNPACKED, true), (4 * UNPACKED, false)] {
        let mut store = ObjectStore::new(&Symbols::new(room));
        let image = store.load(&mapping(&path, 0)).image.unwrap();
        assert_eq!(image.tables_bytes(), 2 * UNPACKED);
        image.function_start(0x1000);
        assert_eq!((store.memory.refusals(), store.lacks_tables()), (u64::from(is_refused), is_refused));
        assert_eq!(store.memory.held(), if is_refused { 0 } else { 2 * UNPACKED });
    }
}

#[test]
#[allow(clippy::print_stderr, reason = "it says why it skips")]
fn what_an_ended_container_had_is_released_once_it_is_named() {
    let mut store = store();
    let Some((mut child, view)) = crate::roots::tests::container(&store.roots) else {
        return eprintln!("skipped: this machine does not let namespaces be made");
    };
    let path = std::fs::canonicalize("/bin/sleep").unwrap();
    let inode = std::fs::metadata(&path).unwrap().ino();
    let loaded = store.load(&Mapped { pid: child.id(), ..mapping(&path, inode) });
    assert!(is_open(&store, &loaded));
    let (no_process, nothing) = (FxHashSet::default(), FxHashSet::default());
    store.release_roots(&FxHashSet::from_iter([view]), &nothing);
    assert!(store.object(loaded.id).is_some(), "a process sees it");
    child.kill().unwrap();
    child.wait().unwrap();
    store.release_roots(&no_process, &FxHashSet::from_iter([loaded.id]));
    assert_eq!(store.roots.foreign_views(), [view], "somebody has mapped it");
    let snapshot = store.snapshot();
    store.release_roots(&no_process, &nothing);
    assert!(store.roots.foreign_views().is_empty() && store.object(loaded.id).is_none());
    let Content::File(file) = &snapshot.get(loaded.id).unwrap().content else { panic!("it was opened") };
    assert!(file.get().is_ok());
    let opens = |roots: &Roots| roots.open(view, &path, crate::sys::root::Link::Follow).is_ok();
    assert!(opens(&snapshot.roots) && opens(&snapshot.roots.only(view)));
    assert!(
        !opens(&snapshot.roots.only(crate::roots::RootView::Ours)),
        "an object of ours holds none of others"
    );
}
