//! Programs that replace this one, or that it starts: the agent is preloaded into them if possible. Any other
//! program has to run unchanged, and some loaders and runtimes complain about a library or end. So its file
//! is checked first: its dynamic linker has to be ours, what it needs in front of everything stays there
//! (`agent_memory::Program`), and the library can be read from where the program will be (a `chroot`, another
//! user).
//!
//! All of this happens where `exec` may be called: in the child of a `fork` or a `vfork`, with other threads'
//! locks held for ever. So nothing is allocated or locked, `errno` is not touched, and some kilobytes of
//! stack are used, as by the C library's own search.
//!
//! Programs started without these functions (by system calls of the program's own, the C library's `wordexp`)
//! are not sampled. What `system` and `popen` start is, as long as the program has not changed its
//! environment. With glibc before 2.29 that does not hold for `popen`, which calls `fork`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

use agent_memory::{Program, Text};

use crate::environment::{self, EnvironmentString};
use crate::next::Next;
use crate::{control, guard, memory, sys};

/// A script may name another script as its interpreter, so often.
const SCRIPTS: usize = 4;
/// Longest path that is put together from `PATH` (bytes).
const LONGEST_PATH: usize = 1024;
/// Where programs are looked for if `PATH` says nothing: as the C library has it.
const USUAL_PATH: &[u8] = b"/bin:/usr/bin";

type Execve =
    unsafe extern "C" fn(EnvironmentString, *const EnvironmentString, *const EnvironmentString) -> c_int;
type FdExecve = unsafe extern "C" fn(c_int, *const EnvironmentString, *const EnvironmentString) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    EnvironmentString,
    *const c_void,
    *const c_void,
    *const EnvironmentString,
    *const EnvironmentString,
) -> c_int;
type AddFolder = unsafe extern "C" fn(*mut c_void, EnvironmentString) -> c_int;
type AddFolderFd = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Shell = unsafe extern "C-unwind" fn(EnvironmentString) -> c_int;
type Pipe = unsafe extern "C-unwind" fn(EnvironmentString, EnvironmentString) -> *mut libc::FILE;

// SAFETY: its type is that of its manual page, as are those of all that follow.
static EXECVE: Next<Execve> = unsafe { Next::new(c"execve") };
// SAFETY: see above.
static EXECVPE: Next<Execve> = unsafe { Next::new(c"execvpe") };
// SAFETY: see above.
static FEXECVE: Next<FdExecve> = unsafe { Next::new(c"fexecve") };
// SAFETY: see above.
static SPAWN: Next<Spawn> = unsafe { Next::new(c"posix_spawn") };
// SAFETY: see above.
static SPAWNP: Next<Spawn> = unsafe { Next::new(c"posix_spawnp") };
// SAFETY: see above.
static ADD_FOLDER: Next<AddFolder> = unsafe { Next::new(c"posix_spawn_file_actions_addchdir_np") };
// SAFETY: see above.
static ADD_FOLDER_FD: Next<AddFolderFd> = unsafe { Next::new(c"posix_spawn_file_actions_addfchdir_np") };
// SAFETY: see above.
static SYSTEM: Next<Shell> = unsafe { Next::new(c"system") };
// SAFETY: see above.
static POPEN: Next<Pipe> = unsafe { Next::new(c"popen") };

/// Device and inode of our dynamic linker; zeros if they are not known.
static LINKER: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Whether the program has ever had a child start in another folder.
static CHANGES_FOLDER: AtomicBool = AtomicBool::new(false);

/// Finds the C library's functions, since `exec` may be called where nothing can be looked for.
pub(crate) fn find() {
    let _ = (EXECVE.get(), EXECVPE.get(), FEXECVE.get(), SPAWN.get(), SPAWNP.get());
    let _ = (ADD_FOLDER.is_there(), ADD_FOLDER_FD.is_there(), SYSTEM.get(), POPEN.get());
}

/// Notes which dynamic linker has loaded us.
pub(crate) fn find_linker() {
    let path = environment::linker();
    if path.is_null() {
        return;
    }
    if let Some(file) = sys::stat_at(libc::AT_FDCWD, path, 0) {
        LINKER[0].store(file.st_dev, Relaxed);
        LINKER[1].store(file.st_ino, Relaxed);
    }
}

/// Whether anything is given on by this process.
fn gives_on() -> bool {
    let has_memory = || memory::get().is_some_and(|memory| !memory.is_over(sys::monotonic_ns()));
    memory::ENABLED.load(Relaxed) && !control::is_injected() && guard::may_give_on() && has_memory()
}

/// What has to come before the agent in this program; `None` if it is to run without the agent.
///
/// # Safety
///
/// The path ends with a zero.
unsafe fn taken_by(path: EnvironmentString) -> Option<Text> {
    // A device or a pipe is not waited for.
    let file = Opened(sys::open(path, libc::O_RDONLY | libc::O_NONBLOCK)?);
    taken_by_open(file.0, SCRIPTS)
}

fn taken_by_open(fd: c_int, scripts: usize) -> Option<Text> {
    let file = sys::stat_at(fd, c"".as_ptr(), libc::AT_EMPTY_PATH)?;
    let has_others_rights = file.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0 || sys::has_capabilities(fd);
    if file.st_mode & libc::S_IFMT != libc::S_IFREG || has_others_rights {
        return None;
    }
    match Program::read(|at, into| sys::read_at(fd, into, at)) {
        Program::Script(interpreter) => {
            let mut path = [0; LONGEST_PATH];
            path.get_mut(..interpreter.bytes().len())?.copy_from_slice(interpreter.bytes());
            let file = Opened(sys::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_NONBLOCK)?);
            taken_by_open(file.0, scripts.checked_sub(1)?)
        }
        Program::Dynamic { linker, first } => (is_our_linker(&linker) && is_library_there()).then_some(first),
        Program::Refused(_) | Program::Unknown => None,
    }
}

fn is_our_linker(linker: &Text) -> bool {
    let mut path = [0; LONGEST_PATH];
    let bytes = linker.bytes();
    path[..bytes.len()].copy_from_slice(bytes);
    let file = sys::stat_at(libc::AT_FDCWD, path.as_ptr().cast(), 0);
    file.is_some_and(|file| [file.st_dev, file.st_ino] == [LINKER[0].load(Relaxed), LINKER[1].load(Relaxed)])
}

fn is_library_there() -> bool {
    let path = environment::library();
    !path.is_null() && sys::open(path, libc::O_RDONLY).map(Opened).is_some()
}

/// A file of ours, closed in the end.
struct Opened(c_int);

impl Drop for Opened {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// The same for a program that is looked for in `PATH` if its name has no slash.
///
/// # Safety
///
/// The name ends with a zero.
unsafe fn taken_by_found(name: EnvironmentString) -> Option<Text> {
    // SAFETY: the caller answers for it.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if bytes.contains(&b'/') {
        // SAFETY: as the caller answers for.
        return unsafe { taken_by(name) };
    }
    // SAFETY: the C library's own search does the same.
    let list = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: what `getenv` returns ends with a zero.
    let list = if list.is_null() { USUAL_PATH } else { unsafe { CStr::from_ptr(list) }.to_bytes() };
    for folder in list.split(|&byte| byte == b':') {
        let mut path = [0; LONGEST_PATH];
        let length = folder.len() + bytes.len() + 1;
        let room = path.get_mut(..length).filter(|_| length < LONGEST_PATH)?;
        let start = if folder.is_empty() { 0 } else { folder.len() + 1 };
        room[..folder.len()].copy_from_slice(folder);
        if start > 0 {
            room[folder.len()] = b'/';
        }
        room[start..start + bytes.len()].copy_from_slice(bytes);
        let path = path.as_ptr().cast();
        let is_program =
            |file: libc::stat| file.st_mode & libc::S_IFMT == libc::S_IFREG && file.st_mode & 0o111 != 0;
        if sys::stat_at(libc::AT_FDCWD, path, 0).is_some_and(is_program) {
            // SAFETY: the array ends with zeros.
            return unsafe { taken_by(path) };
        }
    }
    None
}

/// Calls with the environment that a program is to have.
///
/// # Safety
///
/// The environment is one, or null.
unsafe fn with_environment<R>(
    entries: *const EnvironmentString,
    first: impl FnOnce() -> Option<Text>,
    call: impl FnOnce(*const EnvironmentString) -> R,
) -> R {
    let with_ours = |entries| match gives_on().then(first).flatten() {
        // SAFETY: as the caller answers for.
        Some(first) => unsafe { environment::with_ours(entries, first.bytes(), call) },
        None => call(entries),
    };
    // SAFETY: as the caller answers for.
    unsafe { environment::without_lent(entries, with_ours) }
}

/// See execve(2).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn execve(
    path: EnvironmentString,
    arguments: *const EnvironmentString,
    entries: *const EnvironmentString,
) -> c_int {
    // SAFETY: as we were called; the kernel refuses a null path.
    unsafe {
        let first = || if path.is_null() { None } else { taken_by(path) };
        with_environment(entries, first, |entries| EXECVE.get()(path, arguments, entries))
    }
}

/// See exec(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn execv(path: EnvironmentString, arguments: *const EnvironmentString) -> c_int {
    // SAFETY: as we were called.
    unsafe { execve(path, arguments, environment::current()) }
}

/// See exec(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvpe(
    name: EnvironmentString,
    arguments: *const EnvironmentString,
    entries: *const EnvironmentString,
) -> c_int {
    // SAFETY: as we were called.
    unsafe {
        let first = || taken_by_found(name);
        with_environment(entries, first, |entries| EXECVPE.get()(name, arguments, entries))
    }
}

/// See exec(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn execvp(name: EnvironmentString, arguments: *const EnvironmentString) -> c_int {
    // SAFETY: as we were called.
    unsafe { execvpe(name, arguments, environment::current()) }
}

/// See fexecve(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve(
    fd: c_int,
    arguments: *const EnvironmentString,
    entries: *const EnvironmentString,
) -> c_int {
    // SAFETY: as we were called.
    unsafe {
        let first = || taken_by_open(fd, SCRIPTS);
        with_environment(entries, first, |entries| FEXECVE.get()(fd, arguments, entries))
    }
}

/// `execle`, whose environment comes behind its arguments.
unsafe extern "C" fn execute_list_with(
    path: EnvironmentString,
    arguments: *const EnvironmentString,
) -> c_int {
    let mut end = arguments;
    // SAFETY: the arguments end with null, and the environment follows.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, (*end.add(1)).cast())
    }
}

/// Functions that take their arguments one by one: those that came in registers are put before the others on the stack, which makes
/// the list that their siblings take.
macro_rules! one_by_one {
    ($($name:ident is $sibling:ident;)*) => {$(
        /// See exec(3).
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                ".cfi_startproc", "pop rax", "push r9", "push r8", "push rcx", "push rdx", "push rsi", "mov rsi, rsp",
                "push rax", ".cfi_def_cfa_offset 56", ".cfi_offset rip, -56", "call {sibling}", "pop rcx", "add rsp, 40",
                "push rcx", ".cfi_def_cfa_offset 8", ".cfi_offset rip, -8", "ret", ".cfi_endproc", sibling = sym $sibling,
            )
        }

        /// The same.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "stp x30, x1, [sp, #-64]!", "stp x2, x3, [sp, #16]", "stp x4, x5, [sp, #32]", "stp x6, x7, [sp, #48]",
                "add x1, sp, #8", "bl {sibling}", "ldr x30, [sp], #64", "ret", sibling = sym $sibling,
            )
        }
    )*};
}

one_by_one! {
    execl is execv;
    execlp is execvp;
    execle is execute_list_with;
}

/// Whether the child will be in the same folder as we are when the path counts, or the path is the same in any.
///
/// # Safety
///
/// The path ends with a zero.
unsafe fn is_same_there(path: EnvironmentString) -> bool {
    // SAFETY: the caller answers for it.
    unsafe { *path == b'/' as c_char || !CHANGES_FOLDER.load(Relaxed) }
}

/// See posix_spawn(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn(
    pid: *mut libc::pid_t,
    path: EnvironmentString,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const EnvironmentString,
    entries: *const EnvironmentString,
) -> c_int {
    // SAFETY: as we were called.
    unsafe {
        let first = || if is_same_there(path) { taken_by(path) } else { None };
        let call = |entries| SPAWN.get()(pid, path, actions, attributes, arguments, entries);
        with_environment(entries, first, call)
    }
}

/// See posix_spawn(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawnp(
    pid: *mut libc::pid_t,
    name: EnvironmentString,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const EnvironmentString,
    entries: *const EnvironmentString,
) -> c_int {
    // SAFETY: as we were called.
    unsafe {
        let is_path = CStr::from_ptr(name).to_bytes().contains(&b'/');
        let first = || if !is_path || is_same_there(name) { taken_by_found(name) } else { None };
        let call = |entries| SPAWNP.get()(pid, name, actions, attributes, arguments, entries);
        with_environment(entries, first, call)
    }
}

/// Has a child begin in another folder: from then on a path that is no absolute one says nothing here.
///
/// # Safety
///
/// As in its manual page.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addchdir_np(
    actions: *mut c_void,
    path: EnvironmentString,
) -> c_int {
    CHANGES_FOLDER.store(true, Relaxed);
    if !ADD_FOLDER.is_there() {
        return libc::ENOSYS;
    }
    // SAFETY: as we were called.
    unsafe { ADD_FOLDER.get()(actions, path) }
}

/// The same by a number.
///
/// # Safety
///
/// As in its manual page.
#[unsafe(no_mangle)]
unsafe extern "C" fn posix_spawn_file_actions_addfchdir_np(actions: *mut c_void, fd: c_int) -> c_int {
    CHANGES_FOLDER.store(true, Relaxed);
    if !ADD_FOLDER_FD.is_there() {
        return libc::ENOSYS;
    }
    // SAFETY: as we were called.
    unsafe { ADD_FOLDER_FD.get()(actions, fd) }
}

/// Has the shell that the C library is about to start sampled; true if that is to be undone.
fn lend_to_shell() -> bool {
    // SAFETY: the path ends with a zero.
    let is_taken =
        gives_on() && unsafe { taken_by(c"/bin/sh".as_ptr()) }.is_some_and(|first| first.bytes().is_empty());
    if is_taken {
        environment::lend();
    }
    is_taken
}

/// See system(3). Where the thread is cancelled meanwhile, what was lent stays.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: EnvironmentString) -> c_int {
    let is_lent = !command.is_null() && lend_to_shell();
    // SAFETY: as we were called.
    let status = unsafe { SYSTEM.get()(command) };
    if is_lent {
        environment::take_back();
    }
    status
}

/// See popen(3).
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: EnvironmentString, kind: EnvironmentString) -> *mut libc::FILE {
    let is_lent = lend_to_shell();
    // SAFETY: as we were called.
    let stream = unsafe { POPEN.get()(command, kind) };
    if is_lent {
        environment::take_back();
    }
    stream
}
