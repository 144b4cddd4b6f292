//! Three readers: ours, `llvm-symbolizer` and binutils' `addr2line`; and three of the kernel's list.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use symbolizer::{DebugFiles, KernelSymbols, Object, ReadAt, Symbolized};

use super::{Chain, Frame};

/// The file system as it is.
#[derive(Clone)]
struct Disk;

impl DebugFiles for Disk {
    fn open(&self, path: &Path) -> Option<Box<dyn ReadAt>> {
        Some(Box::new(File::open(path).ok().filter(|file| file.metadata().is_ok_and(|meta| meta.is_file()))?))
    }

    fn share(&self) -> Option<Box<dyn DebugFiles + Send + Sync>> {
        Some(Box::new(self.clone()))
    }
}

/// What we know of each address.
pub fn ours(path: &Path, addresses: &[u64]) -> Result<Vec<Chain>> {
    let file = File::open(path)?;
    let object = Object::load(&file, path, &Disk)?;
    let chain = |found| match found {
        Symbolized::Known(frames) => frames.into_iter().map(frame).collect(),
        Symbolized::Unknown(_) => Chain::new(),
    };
    Ok(object.symbolize_all(addresses).into_iter().map(chain).collect())
}

fn frame(frame: symbolizer::NamedFrame) -> Frame {
    Frame {
        name: frame.linkage_name.to_string(),
        file: frame.file.unwrap_or_default().to_string(),
        line: frame.line.unwrap_or(0),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    symbol: Vec<Symbol>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Symbol {
    function_name: String,
    file_name: String,
    line: u32,
}

/// What `llvm-symbolizer` prints for each address.
pub fn llvm(path: &Path, addresses: &[u64]) -> Result<Vec<Chain>> {
    let mut command = Command::new("llvm-symbolizer");
    command
        .args(["--output-style=JSON", "--functions=linkage", "--no-demangle", "--inlining", "--obj"])
        .arg(path);
    let printed = ask(&mut command, addresses)?;
    let parse = |line: &str| -> Result<Chain> {
        let answer: Answer = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let frames = answer.symbol.into_iter().map(|symbol| Frame {
            name: symbol.function_name,
            file: symbol.file_name,
            line: symbol.line,
        });
        Ok(known(frames.collect()))
    };
    printed.lines().map(parse).collect()
}

/// What `addr2line` of binutils prints for each address.
pub fn binutils(path: &Path, addresses: &[u64]) -> Result<Vec<Chain>> {
    let printed = ask(Command::new("addr2line").args(["-a", "-i", "-f", "-e"]).arg(path), addresses)?;
    let mut chains: Vec<Chain> = Vec::new();
    let mut lines = printed.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            chains.push(Chain::new());
        } else if let (Some(chain), Some(place)) = (chains.last_mut(), lines.next()) {
            let place = place.split(" (discriminator").next().unwrap_or(place);
            let (file, number) = place.rsplit_once(':').unwrap_or((place, "0"));
            let clear = |text: &str| if text == "??" { String::new() } else { text.to_owned() };
            chain.push(Frame { name: clear(line), file: clear(file), line: number.parse().unwrap_or(0) });
        }
    }
    Ok(chains.into_iter().map(known).collect())
}

/// What binutils' `objdump` calls the stubs of calls into libraries (`puts@plt`) at each address, if it does.
pub fn stubs(path: &Path, addresses: &[u64]) -> Result<Vec<Chain>> {
    let sections = [".plt", ".plt.sec", ".plt.got"].map(|section| format!("--section={section}"));
    let output = Command::new("objdump").arg("-d").args(sections).arg(path).output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let label = |line: &str| {
        let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
        Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
    };
    let labels: BTreeMap<u64, String> = printed.lines().filter_map(label).collect();
    let chain = |address: &u64| labels.range(..=address).next_back().map(|(_, name)| named(name));
    Ok(addresses.iter().map(|address| chain(address).into_iter().collect()).collect())
}

/// Drops frames of which nothing is known.
fn known(mut chain: Chain) -> Chain {
    chain.retain(|frame| !frame.name.is_empty() || frame.line != 0);
    chain
}

/// Runs a reader that takes an address a line.
fn ask(command: &mut Command, addresses: &[u64]) -> Result<String> {
    let name = command.get_program().to_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} cannot be run; is it installed?", name.display()))?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    let text: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{} failed: {}", name.display(), output.status);
    writer.join().ok().context("the writing thread panicked")??;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What we know of addresses of the kernel.
pub fn our_kernel(list: &[u8], addresses: &[u64]) -> Result<Vec<Chain>> {
    let symbols = KernelSymbols::parse(list)?;
    let chain =
        |&address: &u64| symbols.symbolize(address).map(|symbol| named(&symbol.name)).into_iter().collect();
    Ok(addresses.iter().map(chain).collect())
}

/// Names from the list itself, as in the kernel's own messages: the last symbol at or before the address.
pub fn system_map(list: &str, addresses: &[u64]) -> Vec<Chain> {
    let symbol = |line: &str| {
        let mut words = line.split(' ');
        let (address, _, name) = (words.next()?, words.next()?, words.next()?);
        Some((u64::from_str_radix(address, 16).ok()?, name.split('\t').next()?.to_owned()))
    };
    let symbols: BTreeMap<u64, String> = list.lines().filter_map(symbol).collect();
    let chain = |address: &u64| symbols.range(..=address).next_back().map(|(_, name)| named(name));
    addresses.iter().map(|address| chain(address).into_iter().collect()).collect()
}

/// What the crate `blazesym` knows of them.
pub fn blazesym_kernel(addresses: &[u64]) -> Result<Vec<Chain>> {
    use blazesym::MaybeDefault;
    use blazesym::symbolize::source::{Kernel, Source};
    use blazesym::symbolize::{Input, Symbolizer};

    let source = Source::Kernel(Kernel { vmlinux: MaybeDefault::None, ..Kernel::default() });
    let symbolizer = Symbolizer::new();
    let found = symbolizer.symbolize(&source, Input::AbsAddr(addresses))?;
    Ok(found
        .iter()
        .map(|symbol| symbol.as_sym().map(|symbol| named(&symbol.name)).into_iter().collect())
        .collect())
}

fn named(name: &str) -> Frame {
    Frame { name: name.to_owned(), file: String::new(), line: 0 }
}
