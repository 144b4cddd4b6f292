//! Live tests on machines that do other things, too.

use anyhow::Result;

/// Chance and a busy machine fail a check once, perhaps twice; an error fails it every time.
const ATTEMPTS: usize = 3;

/// Repeats a check of a live run until it passes, at most three times. What noise cannot change needs no repetition.
#[allow(clippy::print_stderr, reason = "an attempt that failed says why")]
pub fn attempts(mut check: impl FnMut() -> Result<()>) -> Result<()> {
    for attempt in 1..ATTEMPTS {
        match check() {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("attempt {attempt} of {ATTEMPTS} failed: {error:#}"),
        }
    }
    check()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(times: usize) -> (bool, usize) {
        let mut made = 0;
        let ended = attempts(|| {
            made += 1;
            anyhow::ensure!(made > times);
            Ok(())
        });
        (ended.is_ok(), made)
    }

    #[test]
    fn only_what_fails_every_time_fails() {
        assert_eq!([0, 1, 2, 3].map(failing), [(true, 1), (true, 2), (true, 3), (false, 3)]);
    }
}
