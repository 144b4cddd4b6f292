//! Rules for labels do what Prometheus' do: most cases are those of its own tests.

use std::collections::BTreeMap;

use config::{DaemonSettings, RelabelRules};

type Labels<'l> = &'l [(&'l str, &'l str)];

fn rules(text: &str) -> RelabelRules {
    let settings = DaemonSettings::parse(text.as_bytes());
    settings.unwrap_or_else(|problems| panic!("{text}: {problems:#?}")).relabel
}

fn owned(labels: Labels<'_>) -> BTreeMap<String, String> {
    labels.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

/// What becomes of the labels of a target `web`; nothing if it is dropped. A `;` at the end of a line begins another rule.
fn relabelled(keys: &str, labels: Labels<'_>) -> Option<BTreeMap<String, String>> {
    let text: String = keys.split(";\n").map(|rule| format!("[[relabel]]\n{rule}\n")).collect();
    let mut labels = owned(labels);
    rules(&text).apply("web", &mut labels).then_some(labels)
}

const ABC: Labels<'_> = &[("a", "foo"), ("b", "bar"), ("c", "baz")];
const POD: Labels<'_> =
    &[("k8s.namespace.name", "shop"), ("k8s.pod.label.app", "cart"), ("k8s.pod.name", "cart-0")];

/// Rules, labels before, and those that are added, changed or (with an empty text) removed.
const CHANGES: &[(&str, Labels<'_>, Labels<'_>)] = &[
    (
        "source_labels = [\"a\"]\nregex = \"f(.*)\"\ntarget_label = \"d\"\nreplacement = \"ch${1}-ch${1}\"",
        ABC,
        &[("d", "choo-choo")],
    ),
    (
        "source_labels = [\"a\", \"b\"]\nregex = \"f(.*);(.*)r\"\ntarget_label = \"a\"\nreplacement = \"b${1}${2}m\";\n\
         source_labels = [\"c\", \"a\"]\nregex = \"(b).*b(.*)ba(.*)\"\ntarget_label = \"d\"\nreplacement = \"$1$2$2$3\"",
        ABC,
        &[("a", "boobam"), ("d", "boooom")],
    ),
    (
        "source_labels = [\"k8s.namespace.name\", \"k8s.pod.name\"]\nseparator = \"/\"\ntarget_label = \"pod\"",
        POD,
        &[("pod", "shop/cart-0")],
    ),
    ("source_labels = [\"a\", \"none\", \"b\"]\ntarget_label = \"d\"", ABC, &[("d", "foo;;bar")]),
    ("source_labels = [\"a\"]\nregex = \"fo\"\ntarget_label = \"b\"\nreplacement = \"x\"", ABC, &[]),
    ("source_labels = [\"a\"]\nregex = \"oo\"\ntarget_label = \"b\"\nreplacement = \"x\"", ABC, &[]),
    ("target_label = \"d\"\nreplacement = \"constant\"", ABC, &[("d", "constant")]),
    ("source_labels = [\"none\"]\ntarget_label = \"a\"", ABC, &[("a", "")]),
    ("target_label = \"a\"\nreplacement = \"\"", ABC, &[("a", "")]),
    ("source_labels = [\"a\"]\nregex = \"(x)|foo\"\ntarget_label = \"b\"", ABC, &[("b", "")]),
    (
        "source_labels = [\"a\"]\nregex = \"some-([^-]+)-([^,]+)\"\ntarget_label = \"${1}\"\nreplacement = \"${2}\"",
        &[("a", "some-name-value")],
        &[("name", "value")],
    ),
    (
        "source_labels = [\"a\"]\nregex = \"some-([^-]+)-([^,]+)\"\ntarget_label = \"${3}\"\nreplacement = \"${2}\"",
        &[("a", "some-name-value")],
        &[],
    ),
    (
        "source_labels = [\"a\"]\nregex = \"(.*)\"\ntarget_label = \"no name $1\"\nreplacement = \"x\"",
        ABC,
        &[],
    ),
    (
        "source_labels = [\"a\"]\nregex = \"(?P<first>.)(.*)\"\ntarget_label = \"d\"\nreplacement = \"$$${first}$2x-${2}\"",
        ABC,
        &[("d", "$f-oo")],
    ),
    (
        "source_labels = [\"address\"]\nregex = \"([^:]+)(?::\\\\d+)?\"\ntarget_label = \"host.name\"",
        &[("address", "db-1:5432")],
        &[("host.name", "db-1")],
    ),
    ("regex = \"(b.*)\"\naction = \"labeldrop\"", ABC, &[("b", "")]),
    ("regex = \"(b.*)\"\naction = \"labelkeep\"", ABC, &[("a", ""), ("c", "")]),
    (
        "regex = \"(b.*)\"\nreplacement = \"bar_${1}\"\naction = \"labelmap\"",
        &[("a", "foo"), ("b1", "bar"), ("b2", "baz")],
        &[("bar_b1", "bar"), ("bar_b2", "baz")],
    ),
    ("regex = 'k8s\\.pod\\.label\\.(.+)'\naction = \"labelmap\"", POD, &[("app", "cart")]),
    (
        "source_labels = [\"a\"]\ntarget_label = \"a\"\naction = \"uppercase\";\n\
         source_labels = [\"B\"]\ntarget_label = \"b\"\naction = \"lowercase\"",
        &[("a", "bAr1"), ("B", "FoO"), ("b", "x")],
        &[("a", "BAR1"), ("b", "foo")],
    ),
    (
        "source_labels = [\"__target__\", \"a\"]\ntarget_label = \"__tmp_both\";\n\
         source_labels = [\"__tmp_both\"]\ntarget_label = \"service\"",
        ABC,
        &[("service", "web;foo")],
    ),
    (
        "regex = \"__(target)__\"\naction = \"labelmap\"\nreplacement = \"of_$1\"",
        ABC,
        &[("of_target", "web")],
    ),
];

#[test]
fn rules_change_labels_as_prometheus_does() {
    for (keys, before, changed) in CHANGES {
        let mut expected = owned(before);
        for (name, text) in *changed {
            expected.insert((*name).to_owned(), (*text).to_owned());
        }
        expected.retain(|_, text| !text.is_empty());
        assert_eq!(relabelled(keys, before), Some(expected), "{keys}");
    }
}

#[test]
fn rules_keep_and_drop_as_prometheus_does() {
    for (keys, before, is_kept) in [
        ("source_labels = [\"a\"]\nregex = \".*o.*\"\naction = \"drop\"", ABC, false),
        ("source_labels = [\"a\"]\nregex = \"f|o\"\naction = \"drop\"", ABC, true),
        ("source_labels = [\"a\"]\nregex = \"no-match\"\naction = \"keep\"", ABC, false),
        ("source_labels = [\"a\"]\nregex = \"f.*\"\naction = \"keep\"", ABC, true),
        ("source_labels = [\"a\", \"b\"]\nregex = \"foo;bar\"\naction = \"keep\"", ABC, true),
        ("source_labels = [\"none\"]\nregex = \"\"\naction = \"drop\"", ABC, false),
        ("source_labels = [\"none\"]\nregex = \".+\"\naction = \"keep\"", ABC, false),
        ("source_labels = [\"k8s.pod.label.app\"]\nregex = \"cart|till\"\naction = \"drop\"", POD, false),
        ("source_labels = [\"k8s.pod.label.app\"]\nregex = \"car\"\naction = \"drop\"", POD, true),
        ("source_labels = [\"__target__\"]\nregex = \"web\"\naction = \"drop\"", ABC, false),
        // Rules see what those above have made.
        (
            "target_label = \"__tmp\"\nreplacement = \"x\";\nsource_labels = [\"__tmp\"]\nregex = \"x\"\naction = \"keep\"",
            ABC,
            true,
        ),
        (
            "source_labels = [\"a\"]\nregex = \"foo\"\ntarget_label = \"a\"\nreplacement = \"x\";\n\
             source_labels = [\"a\"]\nregex = \"foo\"\naction = \"drop\"",
            ABC,
            true,
        ),
        (
            "action = \"labelkeep\"\nregex = \"a\";\nsource_labels = [\"__target__\"]\nregex = \"web\"\naction = \"keep\"",
            ABC,
            true,
        ),
    ] {
        assert_eq!(relabelled(keys, before).is_some(), is_kept, "{keys}");
    }
}

#[test]
fn without_what_drops_labels_alone_change() {
    let rules = rules(
        "[[relabel]]\nsource_labels = [\"a\"]\nregex = \"foo\"\naction = \"drop\"\n\
         [[relabel]]\ntarget_label = \"d\"\nreplacement = \"x\"\n",
    );
    let mut labels = owned(ABC);
    rules.apply_to_labels("web", &mut labels);
    assert_eq!(labels.get("d").map(String::as_str), Some("x"));
}

#[test]
fn a_text_of_several_lines_is_matched_as_a_whole() {
    let rule = "source_labels = [\"a\"]\nregex = \"line1.*line2\"\naction = \"keep\"";
    assert!(relabelled(rule, &[("a", "line1\nline2")]).is_some());
    assert!(relabelled(rule, &[("a", "line1\nline2\n")]).is_none());
}

#[test]
fn what_rules_make_is_bounded() {
    let long = "x".repeat(300);
    let made = relabelled("source_labels = [\"a\", \"a\"]\ntarget_label = \"b\"", &[("a", &long)]).unwrap();
    assert!(made["b"].len() <= 256 && made["b"].ends_with('…'));
    let doubling = ["action = \"labelmap\"\nreplacement = \"${1}x\""; 64].join(";\n");
    let made = relabelled(&doubling, &[("a", "b")]).unwrap();
    assert!((10..=64).contains(&made.len()), "{}", made.len());
    assert!(made.keys().all(|name| name.len() < 400));
}

#[test]
fn no_rules_change_nothing() {
    let mut labels = owned(&[("__a", "b")]);
    assert!(RelabelRules::default().apply("web", &mut labels) && labels == owned(&[("__a", "b")]));
}

/// Lines of a file, the place of the problem, and a word of it.
const PROBLEMS: &[(&str, &str, &str)] = &[
    ("relabel = 1", "1:11", "relabel is a list of sections; write [[relabel]]"),
    ("[relabel]\nregex = \"a\"", "1:1", "write [[relabel]]"),
    (
        "[[relabel]]\ntarget_label = \"a\"\nregex = \"a(\"",
        "3:9",
        "relabel[0].regex: `a(` is not a regular expression",
    ),
    ("[[relabel]]\ntarget_label = \"a\"\nregex = \"a)(b\"", "3:9", "unopened group"),
    ("[[relabel]]\ntarget_label = \"a\"\nregex = \"(?:a{1000}){1000}\"", "3:9", "size limit"),
    (
        "[[relabel]]\naction = \"delete\"",
        "2:10",
        "expected replace, keep, drop, labeldrop, labelkeep, labelmap",
    ),
    ("[[relabel]]\naction = \"hashmod\"", "2:10", "is not available in this version; use replace, keep"),
    ("[[relabel]]\nsource_labels = [\"a\"]", "1:1", "relabel[0].target_label: replace needs a label to set"),
    ("[[relabel]]\nsource_labels = [\"a\"]\naction = \"lowercase\"", "1:1", "lowercase needs a label to set"),
    ("[[relabel]]\ntarget_label = \"a\"\naction = \"uppercase\"", "1:1", "uppercase needs labels to look at"),
    ("[[relabel]]\naction = \"keep\"", "1:1", "relabel[0].source_labels: keep needs labels to look at"),
    ("[[relabel]]\naction = \"drop\"\nsource_labels = []", "3:1", "drop needs labels to look at"),
    ("[[relabel]]\ntarget_label = \"a b\"", "2:1", "`a b` is not a valid label name"),
    ("[[relabel]]\ntarget_label = \"pid\"", "2:1", "gives the label pid itself"),
    ("[[relabel]]\ntarget_label = \"__target__\"", "2:1", "can be read but not set"),
    ("[[relabel]]\nsource_labels = [\"\"]\ntarget_label = \"a\"", "2:1", "`` is not a valid label name"),
    ("[[relabel]]\nreplacement = \"a\\n\"\ntarget_label = \"a\"", "2:1", "one line"),
    (
        "[[relabel]]\nregex = \"a\"\naction = \"labelmap\"\nreplacement = \"a b\"",
        "4:1",
        "not a valid label name",
    ),
    ("[[relabel]]\nregex = \"a\"\naction = \"labeldrop\"\nsource_labels = [\"a\"]", "4:1", "by regex alone"),
    ("[[relabel]]\nregex = \"a\"\naction = \"labelkeep\"\nreplacement = \"b\"", "4:1", "by regex alone"),
    ("[[relabel]]\nsourcelabels = [\"a\"]", "2:1", "did you mean source_labels?"),
    (
        "[[export]]\nname = \"a\"\nto = \"http://p\"\n[[export.relabel]]\naction = \"keep\"",
        "4:1",
        "export[0].relabel[0].source_labels: keep needs",
    ),
    (
        "[[export]]\nname = \"a\"\nto = \"http://p\"\nrelabel = [{ regex = \"(\", action = \"labeldrop\" }]",
        "4:22",
        "export[0].relabel[0].regex: `(` is not a regular expression",
    ),
    ("[[export]]\nname = \"a\"\nto = \"http://p\"\nrelabel = 1", "4:11", "write [[export.relabel]]"),
];

#[test]
fn what_is_wrong_with_a_rule_is_said_where_it_stands() {
    for (text, place, word) in PROBLEMS {
        let found = DaemonSettings::parse(text.as_bytes()).expect_err(text);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let said = |problem: &String| problem.starts_with(&format!("{place}: ")) && problem.contains(word);
        assert!(found.len() == 1 && said(&found[0]), "{text}\n{place}: {word}\n{found:#?}");
    }
    let many = "[[relabel]]\ntarget_label = \"a\"\n".repeat(65);
    let found = DaemonSettings::parse(many.as_bytes()).unwrap_err();
    assert!(found.len() == 1 && found[0].text.contains("at most 64 rules"), "{found:?}");
}

#[test]
fn an_export_has_rules_of_its_own_in_either_form() {
    let export = "[[export]]\nname = \"a\"\nto = \"http://p\"\n";
    let rule = "source_labels = [\"service.name\"]\ntarget_label = \"pid\"";
    let nested = format!("{export}[[export.relabel]]\n{rule}\n[[export]]\nname = \"b\"\nto = \"http://p\"\n");
    let inline = format!("{export}relabel = [{{ {} }}]\n", rule.replace('\n', ", "));
    let parsed = [nested, inline].map(|text| DaemonSettings::parse(text.as_bytes()).unwrap());
    assert_eq!(parsed[0].exports[0].relabel, parsed[1].exports[0].relabel);
    assert!(parsed[0].relabel.is_empty() && parsed[0].exports[1].relabel.is_empty());
    let mut labels = owned(&[("service.name", "shop")]);
    assert!(parsed[0].exports[0].relabel.apply("web", &mut labels));
    assert_eq!(labels["pid"], "shop", "names that targets cannot have are free for exports");
}

#[test]
fn labels_of_pods_that_no_target_has_are_known() {
    let rule = |label: &str| format!("[[relabel]]\nsource_labels = [\"{label}\"]\naction = \"keep\"\n");
    let missing = |text: &str| DaemonSettings::parse(text.as_bytes()).unwrap().missing_pod_labels();
    let found = missing(&rule("k8s.pod.label.app"));
    assert!(found.len() == 1 && found[0].contains("add \"app\" to containers.pod_labels"), "{found:?}");
    let shown = format!("[containers]\npod_labels = [\"app\"]\n{}", rule("k8s.pod.label.app"));
    assert!(missing(&shown).is_empty() && missing(&rule("k8s.pod.name")).is_empty());
}
