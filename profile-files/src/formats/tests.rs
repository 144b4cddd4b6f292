use std::collections::BTreeSet;

use super::*;
use crate::testing;

/// The page that lists what reads the files.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reading-the-output.md");
const HEAD: &str = "| ending | what reads it |\n|---|---|\n";

fn of(name: &str) -> Result<&'static str, String> {
    Format::of(Path::new(name)).map(|format| format.name)
}

#[test]
fn the_ending_picks_the_format() {
    for format in Format::written() {
        assert_eq!(of(&format!("some/a.{format}")), Ok(format.name));
        assert!(of(&format!("some/.{format}")).is_err(), "a file with no name but an ending");
        assert!(of(&format!("some/{format}")).is_err(), "no ending");
    }
    assert_eq!(of("a.svg/"), Ok("svg"));
    for name in ["a", "a.gz", "a.json", "a.table", "", "..", "a.svg.bak", "a.SVG"] {
        let advice = of(name).unwrap_err();
        assert!(advice.starts_with("end the file's name in .pb.gz, .folded, "), "{name}: {advice}");
        for format in Format::written() {
            assert!(advice.contains(&format!(".{format}")), "{name}: {advice}");
        }
    }
}

#[test]
fn lists_read_as_a_person_writes_them() {
    let list = |items: &[&str]| in_words(items.iter().map(|item| (*item).to_owned()));
    assert_eq!(
        [list(&[]), list(&["a"]), list(&["a", "b"]), list(&["a", "b", "c"])],
        ["", "a", "a or b", "a, b or c"]
    );
}

#[test]
fn names_tell_formats_apart() {
    let names: BTreeSet<&str> = FORMATS.iter().map(|format| format.name).collect();
    assert_eq!(names.len(), FORMATS.len());
    for format in FORMATS {
        assert_eq!(Format::named(format.name), Some(format));
        let others = Format::written().filter(|other| *other != format);
        assert!(
            others.into_iter().all(|other| !format.name.ends_with(&format!(".{other}"))),
            "the ending of another is a part of .{format}"
        );
    }
    assert_eq!(Format::named("png"), None);
}

#[test]
fn what_is_printed_is_text_and_every_format_can_be_written() {
    for profile in [testing::profile(), SymbolizedProfile::default()] {
        for format in FORMATS {
            let mut out = Vec::new();
            format.write(&profile, View::default(), &mut out).unwrap();
            let text = String::from_utf8(out);
            if format.is_printed {
                assert!(
                    text.unwrap().chars().all(|c| ['\n', '\t'].contains(&c) || !c.is_control()),
                    "{format}"
                );
            }
        }
    }
}

#[test]
fn a_view_bounds_what_lists_functions_and_nothing_else() {
    for format in FORMATS {
        let length = |top| {
            let mut out = Vec::new();
            format.write(&testing::profile(), View { top, ..View::default() }, &mut out).unwrap();
            out.len()
        };
        assert_eq!(length(1) < length(usize::MAX), format.lists_functions, "{format}");
    }
}

#[test]
fn a_refusal_of_the_disk_is_told() {
    for format in FORMATS {
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert!(format.write(&testing::profile(), View::default(), &mut full).is_err(), "{format}");
    }
}

/// `just bless` writes the table of the page anew.
#[test]
fn the_documentation_lists_every_file() {
    let rows: String = Format::written()
        .map(|format| format!("| `.{format}` | {} |\n", format.readers.unwrap_or_default()))
        .collect();
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, after) = page.split_once(HEAD).expect("the page has the table");
    let end = after.find("\n\n").map_or(after.len(), |at| at + 1);
    if after[..end] != rows && std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(PAGE, format!("{before}{HEAD}{rows}{}", &after[end..])).unwrap();
        return;
    }
    assert_eq!(after[..end], rows, "`just bless` writes the table of {PAGE} anew");
}
