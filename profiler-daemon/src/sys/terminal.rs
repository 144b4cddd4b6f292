//! Who the terminal's keys go to.

use std::io::stdin;

use nix::unistd::{getpgrp, tcgetpgrp};

/// Whether this process is in the foreground of its terminal: then Ctrl-C has reached its children as well.
pub(crate) fn in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}
