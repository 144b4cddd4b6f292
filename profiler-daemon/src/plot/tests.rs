use proptest::prelude::*;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::*;

fn chart() -> Chart {
    let curve = (1..=100).map(|n| (f64::from(n), f64::from(n) + 900.0 / f64::from(n))).collect();
    Chart {
        title: "error against n".to_owned(),
        subtitle: "at o = 1 µs & p < 0.2".to_owned(),
        x: Axis::new("samples", Scale::Log, 1.0, 100.0),
        y: Axis::new("error (s)", Scale::Linear, 0.0, 200.0),
        series: vec![
            Series { name: "error".to_owned(), points: curve, look: Look::Line, tone: 0 },
            Series { name: "measured".to_owned(), points: vec![(50.0, 70.0)], look: Look::Dots, tone: 1 },
        ],
        rules: vec![
            VerticalLine { x: 30.0, label: "n* 30".to_owned() },
            VerticalLine { x: 1000.0, label: "out of sight".to_owned() },
        ],
        marks: vec![Mark { at: (30.0, 60.0), label: "best".to_owned() }],
    }
}

/// The texts of a file that is well-formed, with the names of their elements.
fn texts(svg: &str) -> Vec<String> {
    let mut reader = Reader::from_str(svg);
    let (mut texts, mut open) = (Vec::new(), 0i32);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(_) => open += 1,
            Event::End(_) => open -= 1,
            Event::Text(text) => texts.push(text.decode().unwrap().trim().to_owned()),
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(open, 0);
    texts
}

#[test]
fn the_svg_is_well_formed_and_labelled() {
    let svg = chart().svg();
    let texts = texts(&svg);
    for text in
        ["error against n", "samples", "error (s)", "error", "measured", "n* 30", "best", "100", "200"]
    {
        assert!(texts.iter().any(|found| found == text), "{text} is missing in {texts:?}");
    }
    assert!(!svg.contains("out of sight"), "a rule beyond the axis is not drawn");
    assert!(svg.contains("&amp; p &lt; 0.2") && svg.contains("prefers-color-scheme: dark"));
}

#[test]
fn every_point_of_a_curve_is_where_the_axes_say() {
    let mut chart = chart();
    chart.series[0].points = vec![(1.0, 0.0), (10.0, 100.0), (100.0, 200.0)];
    assert!(chart.svg().contains("M84.0 480.0L392.0 278.0L700.0 76.0"));
}

#[test]
fn the_plot_in_characters() {
    insta::assert_snapshot!(chart().text(60));
}

fn any_points() -> impl Strategy<Value = Vec<(f64, f64)>> {
    prop::collection::vec((any::<f64>(), any::<f64>()), 0..8)
}

proptest! {
    #[test]
    fn whatever_is_drawn_is_well_formed_and_fits(
        points in any_points(), low in any::<f64>(), high in any::<f64>(), columns in 0usize..200, log: bool, dots: bool,
    ) {
        let scale = if log { Scale::Log } else { Scale::Linear };
        let look = if dots { Look::Dots } else { Look::Dashes };
        let mut chart = chart();
        chart.rules.extend(points.iter().map(|point| VerticalLine { x: point.0, label: "<rule>".to_owned() }));
        chart.marks.extend(points.iter().map(|point| Mark { at: *point, label: "\"mark\"".to_owned() }));
        chart.x = Axis::new("x", scale, low, high);
        chart.y = Axis::fitted("y", scale, points.iter().map(|point| point.1));
        chart.series.push(Series { name: "any".to_owned(), points, look, tone: 9 });
        let svg = chart.svg();
        texts(&svg);
        prop_assert!(!svg.contains("NaN") && !svg.contains("inf\""));
        prop_assert!(chart.text(columns).lines().all(|line| line.chars().count() <= columns.max(40)));
    }
}
