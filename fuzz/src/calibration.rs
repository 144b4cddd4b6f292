//! Any bytes as the costs of a kept calibration, and what the controller makes of those that are believed.

use profiler_core::rate::{CostModel, RateController, RateSettings, Reading, TopShares};

/// Takes any bytes: JSON, and behind a zero byte what is read then.
pub(crate) fn run(data: &[u8]) {
    let (json, mut readings) = data.split_at(data.iter().position(|&byte| byte == 0).unwrap_or(data.len()));
    let Ok(costs) = serde_json::from_slice::<CostModel>(json) else { return };
    let believed = costs.is_plausible();
    let mut controller = RateController::new(RateSettings::default(), costs);
    let mut at_ns = 0;
    let first = controller.start(at_ns);
    assert!(first.rate_hz.is_finite() && first.period_ns > 0);
    while let Some((bytes, rest)) = readings.split_first_chunk::<8>() {
        let [a, b, c, d, e, f, g, h] = bytes.map(u64::from);
        readings = rest;
        at_ns += 100_000_000;
        let reading = Reading {
            at_ns,
            target_cpu_ns: a << d.min(40),
            self_cpu_ns: b << e.min(40),
            samples: c << f.min(40),
            frames: d << f.min(40),
            stack_bytes: e << g.min(40),
            switches: f << h.min(40),
            lost: g,
            forks: h,
            ..Reading::default()
        };
        let decision =
            controller.step(&reading, &TopShares { counts: vec![(a, b), (c, d)], ..TopShares::default() });
        assert!(decision.rate_hz.is_finite() && decision.rate_hz > 0.0, "{believed}: {decision:?}");
        assert!(decision.period_ns > 0, "{believed}: {decision:?}");
    }
}
