//! Any text as a setting: what is understood is printed so that it is understood again.

use std::fmt::Display;
use std::str::FromStr;

use config::{AttachMode, Backend, Bytes, Criterion, Hertz, Ratio, Source, Span, Unwind};

/// Takes any bytes.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    again::<Ratio>(text);
    again::<Span>(text);
    again::<Hertz>(text);
    again::<Bytes>(text);
    again::<Criterion>(text);
    again::<AttachMode>(text);
    again::<Backend>(text);
    again::<Source>(text);
    again::<Unwind>(text);
}

fn again<T: FromStr<Err: Display> + Display>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            let again = printed.parse::<T>().map(|again| again.to_string());
            assert_eq!(again.ok().as_ref(), Some(&printed), "{text:?}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
