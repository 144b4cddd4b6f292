//! Numbers as charts and tables show them.

/// A number rounded to the whole, in groups of three digits; what is no number stays as Rust writes it.
pub(crate) fn grouped(number: f64) -> String {
    group(&format!("{number:.0}"))
}

/// The label of a tick: as many decimals as its distance from the next one (`step`) needs.
pub(super) fn tick_label(value: f64, step: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e9).contains(&magnitude) {
        return format!("{value:e}").replace("e0", "");
    }
    let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    group(&format!("{value:.decimals$}"))
}

/// Groups the digits before the point, where there are at least four of them.
fn group(digits: &str) -> String {
    let (sign, rest) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let (whole, decimals) = rest.find('.').map_or((rest, ""), |point| rest.split_at(point));
    if !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return digits.to_owned();
    }
    let mut out = sign.to_owned();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + decimals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        assert_eq!(grouped(999.4), "999");
        assert_eq!(grouped(1_234_567.0), "1,234,567");
        assert_eq!(grouped(-123_456.0), "-123,456");
        assert_eq!(grouped(f64::NAN), "NaN");
        assert_eq!(grouped(f64::INFINITY), "inf");
    }

    #[test]
    fn ticks_have_the_decimals_that_tell_them_apart() {
        assert_eq!(tick_label(62.5, 0.5), "62.5");
        assert_eq!(tick_label(62.0, 2.0), "62");
        assert_eq!(tick_label(0.0, 0.05), "0.00");
        assert_eq!(tick_label(20_000.0, 10_000.0), "20,000");
        assert_eq!(tick_label(1e12, 1e12), "1e12");
        assert_eq!(tick_label(2e-7, 1e-7), "2e-7");
    }
}
