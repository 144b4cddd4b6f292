//! The terminal: its foreground process group, its size, and its keys.

use std::fs::File;
use std::io::{stdin, stdout};
use std::os::fd::AsRawFd;

use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, tcgetpgrp};

/// Whether this process is in the foreground of its terminal, wherever its input comes from: then Ctrl-C has reached its
/// children as well.
pub(crate) fn in_foreground() -> bool {
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScreenSize {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The size of the terminal that standard output is; none where it is a file or a pipe, or has no size.
pub(crate) fn size() -> Option<ScreenSize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes a `winsize` to where the pointer says, which is one.
    let answer = unsafe { libc::ioctl(stdout().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let [columns, rows] = [size.ws_col, size.ws_row].map(usize::from);
    (answer == 0 && columns > 0 && rows > 0).then_some(ScreenSize { columns, rows })
}

/// While this lives, keys can be read from the terminal as they are pressed, and are not shown.
pub(crate) struct SingleKeys {
    before: Termios,
}

impl SingleKeys {
    /// None where standard input is no terminal, or another's at present.
    pub(crate) fn begin() -> Option<Self> {
        let before = tcgetattr(stdin()).ok().filter(|_| in_foreground())?;
        let mut single = before.clone();
        single.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        tcsetattr(stdin(), SetArg::TCSANOW, &single).ok()?;
        Some(Self { before })
    }
}

impl Drop for SingleKeys {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &self.before);
    }
}
