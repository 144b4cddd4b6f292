//! The commented file, made from what is written above each setting.

use crate::section::SettingsSection;
use crate::setting::quoted;

const HEAD: &str =
    "# Settings of `sweetspot daemon`. Made by `sweetspot check-config --default`: each key has its default.
# `sweetspot check-config FILE` checks a file, and shows what it would profile and cost.
";

/// The text of the file.
pub(super) fn write(sections: &[String]) -> String {
    sections.iter().fold(HEAD.to_owned(), |file, section| file + "\n" + section)
}

/// The text of a section. One that may be repeated is a comment altogether.
pub(super) fn section<S: SettingsSection>(header: &str, repeated: bool) -> String {
    let mut text = comment(S::DOC);
    text += &format!("{}{header}\n", if repeated { "#" } else { "" });
    for key in S::keys() {
        text += &comment(key.doc);
        // A default that stands for "not given" is no example.
        let empty = key.default.as_ref().is_none_or(|value| *value == quoted(""));
        let value = match key.example {
            Some(example) if empty => {
                if !repeated {
                    text += "# Not set by default; for example:\n";
                }
                example.to_owned()
            }
            _ => key.default.unwrap_or_default(),
        };
        text += &format!("#{} = {value}\n", key.name);
    }
    text
}

fn comment(lines: &[&str]) -> String {
    lines.iter().map(|line| format!("#{line}\n")).collect()
}
