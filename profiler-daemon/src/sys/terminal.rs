//! The terminal's foreground process group, and its width.

use std::fs::File;
use std::io::stdout;
use std::os::fd::AsRawFd;

use nix::unistd::{getpgrp, tcgetpgrp};

/// Whether this process is in the foreground of its terminal, wherever its input comes from: then Ctrl-C has reached its
/// children as well.
pub(crate) fn in_foreground() -> bool {
    let terminal = File::open("/dev/tty");
    terminal.is_ok_and(|terminal| tcgetpgrp(terminal).is_ok_and(|group| group == getpgrp()))
}

/// Columns of the terminal that standard output is; none where it is a file or a pipe.
pub(crate) fn columns() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel writes a `winsize` to where the pointer says, which is one.
    let answer = unsafe { libc::ioctl(stdout().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (answer == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}
