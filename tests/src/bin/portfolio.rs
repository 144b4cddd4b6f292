//! Is the rate the right one for any program? The controller and other ways to choose a rate for 144 programs (4 share
//! shapes × 10, 60 and 300 s × 1.5 to 40 µs a sample × visits to a function of no time, 3 and 50 ms): the expected error of the top four functions' CPU seconds over the
//! least possible one. The controller starts from its first guess and a cost that is off by up to 15%, and sees nothing
//! but samples; it must stay within 1.04 in the mean and 1.20 at worst (1.03 and 1.10 where visits take no time), and beat every other way in the mean.
//!
//! Below it, seconds from which the cost was taken out: at the law's rate, and at the one that is best for them.
//!
//! Options: `--seeds 20` (runs of the controller for each program).

use anyhow::{Result, ensure};
use serde::Serialize;
use tests::experiment::{option, percent, print, row};
use tests::portfolio::{Known, Score, adaptive, chosen, compensated, programs, programs_of};

const FIXED_HZ: [f64; 10] = [49.0, 99.0, 199.0, 499.0, 999.0, 1_999.0, 4_999.0, 9_999.0, 19_999.0, 39_999.0];
/// Visits of the rows below (s of CPU time).
const VISITS_S: [f64; 8] = [0.0, 1e-4, 1e-3, 3e-3, 10e-3, 30e-3, 0.1, 0.5];
/// What the controller may lose in the mean and at worst: of all programs, and of those whose functions don't run on.
const ALLOWED: (f64, f64) = (1.04, 1.20);
const ALLOWED_INDEPENDENT: (f64, f64) = (1.03, 1.10);

#[derive(Serialize)]
struct Way {
    name: String,
    #[serde(flatten)]
    score: Score,
}

fn main() -> Result<()> {
    let programs = programs();
    let way = |name: &str, score: Score| Way { name: name.to_string(), score };
    let controller = adaptive(&programs, Known::Horizon, option("--seeds", 20)?);
    let mut others = vec![way("1% overhead", chosen(&programs, |program| 0.01 / program.overhead_s))];
    others.extend(FIXED_HZ.map(|hz| way(&format!("{hz}/s"), chosen(&programs, |_| hz))));
    let independent: Vec<_> = programs.iter().filter(|program| program.visit_s == 0.0).cloned().collect();
    let of_independent = adaptive(&independent, Known::Horizon, option("--seeds", 20)?);
    let passed = verdict(&controller, &others)
        .and_then(|()| within(&of_independent, "where visits take no time", ALLOWED_INDEPENDENT));

    let law = chosen(&programs, |program| program.law().rate_hz().expect("a cost above zero"));
    let mut ways = vec![way("adaptive", controller), way("the law of independent samples, knowing all", law)];
    ways.extend(others);
    for visit_s in VISITS_S {
        let programs = programs_of(&[60.0], &[visit_s]);
        let name = format!("adaptive, visits of {} ms, 60 s", visit_s * 1e3);
        ways.push(way(&name, adaptive(&programs, Known::Horizon, option("--seeds", 20)?)));
    }
    for (bound, budget_ratio) in [("", f64::INFINITY), (" in 1%", 0.01)] {
        for off in [0.15, 0.45] {
            let name = |rate| format!("taken out, {rate} rate{bound}, cost off by {}%", off * 100.0);
            ways.push(way(&name("law's"), compensated(&independent, off, false, budget_ratio)));
            ways.push(way(&name("own"), compensated(&independent, off, true, budget_ratio)));
        }
    }
    let mut rows = vec![["rate", "mean loss", "worst", "overhead"].map(str::to_string).to_vec()];
    rows.extend(ways.iter().map(to_row));
    print(&rows, &[format!("{} programs", programs.len())], &ways)?;
    passed
}

fn to_row(way: &Way) -> Vec<String> {
    let Score { mean, worst, overhead_ratio } = way.score;
    row([&way.name, &format!("{mean:.3}"), &format!("{worst:.3}"), &percent(overhead_ratio)])
}

fn within(controller: &Score, whose: &str, (most_mean, most_worst): (f64, f64)) -> Result<()> {
    let Score { mean, worst, .. } = controller;
    ensure!(*mean <= most_mean, "the controller's mean loss {whose} is {mean:.3}, above {most_mean}");
    ensure!(*worst <= most_worst, "the controller's worst loss {whose} is {worst:.3}, above {most_worst}");
    Ok(())
}

fn verdict(controller: &Score, others: &[Way]) -> Result<()> {
    within(controller, "over all programs", ALLOWED)?;
    let better = others.iter().find(|way| way.score.mean <= controller.mean);
    ensure!(better.is_none(), "{} does as well as the controller", better.map_or("", |way| &way.name));
    Ok(())
}
