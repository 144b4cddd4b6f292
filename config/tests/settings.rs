//! The parsers over everything a person might write, and the limits of the settings.

use config::{AttachMode, Backend, Bytes, Hertz, Ratio, SamplingSettings, Span, UnitError, Unwind};
use proptest::prelude::*;
use std::time::Duration;

fn span(text: &str) -> Duration {
    text.parse::<Span>().unwrap().duration()
}

#[test]
fn quantities_read_as_people_write_them() {
    assert_eq!("1%".parse::<Ratio>(), "0.01".parse::<Ratio>());
    assert_eq!("0.5 %".parse::<Ratio>().unwrap().get(), 0.005);
    assert_eq!(span("250us"), Duration::from_micros(250));
    assert_eq!(span("250µs"), Duration::from_micros(250));
    assert_eq!(span("1.5s"), Duration::from_millis(1500));
    assert_eq!(span("5m"), Duration::from_secs(300));
    assert_eq!(span("1h"), Duration::from_secs(3600));
    assert_eq!("1.5kHz".parse::<Hertz>().unwrap().get(), 1500.0);
    assert_eq!("99".parse::<Hertz>().unwrap().get(), 99.0);
    assert_eq!("64KiB".parse::<Bytes>().unwrap().get(), 65_536);
    assert_eq!("0.5k".parse::<Bytes>().unwrap().get(), 512);
    assert_eq!(u64::MAX.to_string().parse::<Bytes>().unwrap().get(), u64::MAX);
}

#[test]
fn quantities_print_as_people_write_them() {
    for text in ["1%", "0.5%", "7%", "100%", "0%"] {
        assert_eq!(text.parse::<Ratio>().unwrap().to_string(), text);
    }
    for text in ["60s", "90s", "5m", "2h", "250us", "1ms", "1s", "7ns", "0s"] {
        assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
    }
    assert_eq!("64k".parse::<Bytes>().unwrap().to_string(), "64KiB");
    assert_eq!("99".parse::<Hertz>().unwrap().to_string(), "99Hz");
}

#[test]
fn errors_say_what_was_expected() {
    let error = |text: &str| text.parse::<Span>().unwrap_err();
    assert!(matches!(error("60"), UnitError::NoUnit { .. }));
    assert!(matches!(error("60 parsecs"), UnitError::Malformed { .. }));
    assert!(matches!(error("-1s"), UnitError::Malformed { .. }));
    assert!(matches!(error("1001h"), UnitError::OutOfRange { .. }));
    assert!(error("").to_string().contains("such as 250us"));
    assert!(matches!("101%".parse::<Ratio>(), Err(UnitError::OutOfRange { .. })));
    assert!(matches!("0".parse::<Hertz>(), Err(UnitError::OutOfRange { .. })));
    assert!("1..2%".parse::<Ratio>().is_err());
}

#[test]
fn words_are_read_and_others_refused() {
    let message = "tock".parse::<Backend>().unwrap_err().to_string();
    assert!(message.contains("auto, perf or timer-signal") && !message.contains('\n'), "{message}");
    assert_eq!("timer-signal".parse::<Backend>(), Ok(Backend::TimerSignal));
    assert_eq!("fp".parse::<Unwind>(), Ok(Unwind::FramePointers));
    assert_eq!("cgroup".parse::<AttachMode>(), Ok(AttachMode::Cgroup));
    assert!("frame".parse::<Unwind>().unwrap_err().to_string().contains("auto, fp or dwarf"));
}

#[test]
fn the_defaults_are_valid_and_the_limits_hold() {
    let with_budget = |text: &str| SamplingSettings { budget: text.parse().unwrap(), ..Default::default() };
    let with_rate = |text: &str| SamplingSettings { rate: Some(text.parse().unwrap()), ..Default::default() };
    let with_confidence =
        |text: &str| SamplingSettings { confidence: text.parse().unwrap(), ..Default::default() };
    let with_precision =
        |text: &str| SamplingSettings { until_precision: Some(text.parse().unwrap()), ..Default::default() };
    assert_eq!(SamplingSettings::default().validate(), Ok(()));
    assert!(with_budget("50%").validate().is_ok());
    assert!(with_budget("50.1%").validate().is_err());
    assert!(with_budget("0%").validate().is_err());
    assert!(with_rate("1").validate().is_ok());
    assert!(with_rate("50000").validate().is_ok());
    assert!(with_rate("0.9").validate().is_err());
    assert!(with_rate("50001").validate().is_err());
    assert!(with_confidence("100%").validate().is_err());
    assert!(with_precision("0.1%").validate().is_ok());
    assert!(with_precision("50%").validate().is_ok());
    assert!(with_precision("0.09%").validate().is_err());
    assert!(with_precision("0%").validate().is_err());
    assert!(with_precision("51%").validate().is_err());
    assert!(
        SamplingSettings { horizon: Some("1us".parse().unwrap()), ..Default::default() }.validate().is_err()
    );
}

proptest! {
    #[test]
    fn no_text_panics_a_parser(text in "\\PC*") {
        let _ = text.parse::<Ratio>();
        let _ = text.parse::<Span>();
        let _ = text.parse::<Hertz>();
        let _ = text.parse::<Bytes>();
    }

    #[test]
    fn nearly_right_text_panics_no_parser(text in "[0-9.]{0,400} ?[a-zA-Zµ%]{0,4}") {
        let _ = text.parse::<Ratio>();
        let _ = text.parse::<Span>();
        let _ = text.parse::<Hertz>();
        let _ = text.parse::<Bytes>();
    }

    #[test]
    fn a_printed_span_reads_back(ns in 0..=Span::MAX.as_nanos() as u64) {
        let span = Span::try_from(Duration::from_nanos(ns)).unwrap();
        prop_assert_eq!(span.to_string().parse::<Span>(), Ok(span));
    }

    #[test]
    fn a_printed_ratio_reads_back(share in 0.0..=1.0_f64) {
        let read: Ratio = Ratio::new(share).unwrap().to_string().parse().unwrap();
        prop_assert!((read.get() - share).abs() < 1e-11);
    }

    #[test]
    fn a_printed_size_reads_back(bytes: u64) {
        prop_assert_eq!(Bytes::new(bytes).to_string().parse::<Bytes>(), Ok(Bytes::new(bytes)));
    }

    #[test]
    fn a_printed_rate_reads_back(hertz in 1e-3..1e9_f64) {
        let rate = Hertz::new(hertz).unwrap();
        prop_assert_eq!(rate.to_string().parse::<Hertz>(), Ok(rate));
    }
}
