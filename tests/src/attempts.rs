//! Live tests on machines that do other things, too.

use std::env;

use anyhow::Result;

/// Attempts of a check. Chance or a busy machine fails a check once, perhaps twice; an error fails it every time.
const ATTEMPTS: usize = 3;
/// The environment variable that sets another number: 1 shows which checks fail now and then.
const ATTEMPTS_VARIABLE: &str = "SWEETSPOT_ATTEMPTS";

fn most_attempts() -> usize {
    env::var(ATTEMPTS_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(ATTEMPTS)
}

/// Repeats a check of a live run until it passes, at most three times. What noise cannot change needs no repetition.
pub fn attempts(check: impl FnMut() -> Result<()>) -> Result<()> {
    attempts_up_to(most_attempts(), check)
}

#[allow(clippy::print_stderr, reason = "an attempt that failed says why")]
fn attempts_up_to(most: usize, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    for attempt in 1..most {
        match check() {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("attempt {attempt} of {most} failed: {error:#}"),
        }
    }
    check()
}

/// The output of the first run that passes a check, of at most three. Only a failed check leads to another run; a failed run is an error.
pub fn attempts_of<T>(run: impl FnMut() -> Result<T>, check: impl Fn(&T) -> Result<()>) -> Result<T> {
    attempts_of_up_to(most_attempts(), run, check)
}

#[allow(clippy::print_stderr, reason = "an attempt that failed says why")]
fn attempts_of_up_to<T>(
    most: usize,
    mut run: impl FnMut() -> Result<T>,
    check: impl Fn(&T) -> Result<()>,
) -> Result<T> {
    for attempt in 1..most {
        let left = run()?;
        match check(&left) {
            Ok(()) => return Ok(left),
            Err(error) => eprintln!("attempt {attempt} of {most} failed: {error:#}"),
        }
    }
    let left = run()?;
    check(&left).map(|()| left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(times: usize) -> (bool, usize) {
        let mut made = 0;
        let ended = attempts_up_to(3, || {
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

    #[test]
    fn only_a_check_that_fails_leads_to_another_run() {
        let made_until = |passes: usize, fails: usize| {
            let mut made = 0;
            let run = || {
                made += 1;
                anyhow::ensure!(made != fails);
                Ok(made)
            };
            let check = |&made: &usize| {
                anyhow::ensure!(made >= passes);
                Ok(())
            };
            let left = attempts_of_up_to(3, run, check).ok();
            (left, made)
        };
        assert_eq!([1, 3, 4].map(|passes| made_until(passes, 9)), [(Some(1), 1), (Some(3), 3), (None, 3)]);
        assert_eq!(made_until(3, 2), (None, 2));
    }
}
