//! A chart as SVG: classes for everything with a colour, so that one file suits light pages and dark ones.

use std::fmt::Write;
use std::io;

use quick_xml::Writer;
use quick_xml::events::{BytesEnd, BytesStart, BytesText, Event};

use super::{Chart, Look, Series, letter};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
/// The area inside the axes.
const LEFT: f64 = 84.0;
const RIGHT: f64 = 700.0;
const TOP: f64 = 76.0;
const BOTTOM: f64 = 480.0;
/// Distance of two lines of the legend.
const LINE: f64 = 20.0;
/// The least distance of two letters.
const LETTER: f64 = 11.0;
/// Letters that the legend has room for, and those of the whole width.
const LEGEND_LETTERS: usize = 34;
const LETTERS: usize = 130;

/// Colours by the names of their classes, for a light page and a dark one; each stands out from its ground by
/// 4.5 to 1 at least.
const STYLE: &str = "
svg { color-scheme: light dark; font: 13px system-ui, sans-serif; }
.ground { fill: #ffffff } .text { fill: #1f2328 } .faint { fill: #59636e } .title { font-size: 17px; font-weight: 600 }
.halo { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; stroke-linejoin: round }
.grid { stroke: #d8dee4; stroke-width: 1 } .frame { stroke: #59636e; stroke-width: 1; fill: none }
.rule { stroke: #59636e; stroke-width: 1.3; stroke-dasharray: 2 3 } .mark { fill: none; stroke: #1f2328; stroke-width: 2 }
.curve { fill: none; stroke-width: 2.2 } .dashes { stroke-width: 1.6; stroke-dasharray: 7 5 }
.s0 { stroke: #0b62b0 } .d0 { fill: #0b62b0 } .s1 { stroke: #b3410e } .d1 { fill: #b3410e }
.s2 { stroke: #15743a } .d2 { fill: #15743a } .s3 { stroke: #7a3fd1 } .d3 { fill: #7a3fd1 }
.s4 { stroke: #59636e } .d4 { fill: #59636e }
@media (prefers-color-scheme: dark) {
.ground { fill: #0d1117 } .halo { stroke: #0d1117 } .text { fill: #e6edf3 } .faint { fill: #a2abb5 }
.grid { stroke: #2b323a } .frame, .rule { stroke: #a2abb5 } .mark { stroke: #e6edf3 }
.s0 { stroke: #6cb6ff } .d0 { fill: #6cb6ff } .s1 { stroke: #f69d50 } .d1 { fill: #f69d50 }
.s2 { stroke: #6bc46d } .d2 { fill: #6bc46d } .s3 { stroke: #c297ff } .d3 { fill: #c297ff }
.s4 { stroke: #a2abb5 } .d4 { fill: #a2abb5 }
}
";
/// Colours in [`STYLE`].
const TONES: usize = 5;

/// The file; see [`super::svg()`].
pub(super) fn draw(charts: &[Chart]) -> String {
    let mut page = Page { xml: Writer::new_with_indent(Vec::new(), b' ', 1) };
    let drawn = page.charts(charts);
    debug_assert!(drawn.is_ok(), "memory takes whatever is written");
    String::from_utf8_lossy(&page.xml.into_inner()).into_owned()
}

struct Page {
    xml: Writer<Vec<u8>>,
}

impl Page {
    fn charts(&mut self, charts: &[Chart]) -> io::Result<()> {
        let all = HEIGHT * charts.len() as f64;
        let (width, height) = (WIDTH.to_string(), all.to_string());
        let view = format!("0 0 {WIDTH} {all}");
        let attributes = [
            ("xmlns", "http://www.w3.org/2000/svg"),
            ("width", &width),
            ("height", &height),
            ("viewBox", &view),
            ("role", "img"),
        ];
        self.xml.write_event(Event::Start(BytesStart::new("svg").with_attributes(attributes)))?;
        self.element("title", &[], charts.first().map_or("", |chart| &chart.title))?;
        self.element("style", &[], STYLE)?;
        self.shape("rect", "ground", &[("width", WIDTH), ("height", all)])?;
        self.clip()?;
        for (index, chart) in charts.iter().enumerate() {
            let below = format!("translate(0 {})", HEIGHT * index as f64);
            self.xml
                .write_event(Event::Start(BytesStart::new("g").with_attributes([("transform", &*below)])))?;
            self.chart(chart)?;
            self.xml.write_event(Event::End(BytesEnd::new("g")))?;
        }
        self.xml.write_event(Event::End(BytesEnd::new("svg")))
    }

    fn chart(&mut self, chart: &Chart) -> io::Result<()> {
        self.label("text title", (LEFT, 30.0), "start", &cut(&chart.title, LETTERS))?;
        self.label("faint", (LEFT, 52.0), "start", &cut(&chart.subtitle, LETTERS))?;
        self.axes(chart)?;
        self.rules(chart)?;
        for series in &chart.series {
            self.series(chart, series)?;
        }
        self.marks(chart)?;
        self.legend(chart)
    }

    fn axes(&mut self, chart: &Chart) -> io::Result<()> {
        for tick in chart.x.ticks() {
            let x = across(tick.place);
            self.line("grid", (x, TOP), (x, BOTTOM))?;
            self.label("faint", (x, BOTTOM + 20.0), "middle", &tick.label)?;
        }
        for tick in chart.y.ticks() {
            let y = up(tick.place);
            self.line("grid", (LEFT, y), (RIGHT, y))?;
            self.label("faint", (LEFT - 8.0, y + 4.0), "end", &tick.label)?;
        }
        let size = [("x", LEFT), ("y", TOP), ("width", RIGHT - LEFT), ("height", BOTTOM - TOP)];
        self.shape("rect", "frame", &size)?;
        let middle = (LEFT + RIGHT) / 2.0;
        self.label("text", (middle, BOTTOM + 44.0), "middle", &chart.x.label)?;
        self.y_label(&chart.y.label)
    }

    /// Vertical lines, each with its letter above the frame, beside that of its left neighbour at least.
    fn rules(&mut self, chart: &Chart) -> io::Result<()> {
        let mut free = LEFT;
        for (index, (place, _)) in chart.rules_in_sight().into_iter().enumerate() {
            let x = across(place);
            self.line("rule", (x, TOP), (x, BOTTOM))?;
            let above = x.max(free);
            self.label("text", (above, TOP - 6.0), "middle", &letter(index).to_string())?;
            free = above + LETTER;
        }
        Ok(())
    }

    fn clip(&mut self) -> io::Result<()> {
        let name = BytesStart::new("clipPath").with_attributes([("id", "inside")]);
        self.xml.write_event(Event::Start(name))?;
        let size = [("x", LEFT), ("y", TOP), ("width", RIGHT - LEFT), ("height", BOTTOM - TOP)];
        self.shape("rect", "", &size)?;
        self.xml.write_event(Event::End(BytesEnd::new("clipPath")))
    }

    fn series(&mut self, chart: &Chart, series: &Series) -> io::Result<()> {
        let places: Vec<_> = series.points.iter().map(|point| chart.place(*point)).collect();
        if series.look != Look::Dots {
            let class = curve_class(series);
            let attributes =
                [("class", class.as_str()), ("d", &path(&places)), ("clip-path", "url(#inside)")];
            return self.empty("path", &attributes);
        }
        for (x, y) in places.into_iter().flatten().filter(|place| is_inside(*place)) {
            self.dot(series.tone, (across(x), up(y)))?;
        }
        Ok(())
    }

    fn marks(&mut self, chart: &Chart) -> io::Result<()> {
        for ((x, y), mark) in chart.marks_in_sight() {
            let (cx, cy) = (across(x), up(y));
            self.shape("circle", "mark", &[("cx", cx), ("cy", cy), ("r", 6.0)])?;
            let (beside, anchor) = if x < 0.6 { (cx + 11.0, "start") } else { (cx - 11.0, "end") };
            let below = if y < 0.1 { cy - 10.0 } else { cy + 18.0 };
            self.label("text halo", (beside, below), anchor, &mark.label)?;
        }
        Ok(())
    }

    fn legend(&mut self, chart: &Chart) -> io::Result<()> {
        let (left, right) = (RIGHT + 16.0, RIGHT + 40.0);
        let middle = (left + right) / 2.0;
        let mut y = TOP + 10.0;
        for series in &chart.series {
            match series.look {
                Look::Dots => self.dot(series.tone, (middle, y))?,
                _ => self.line(&curve_class(series), (left, y), (right, y))?,
            }
            self.label("text", (right + 8.0, y + 4.0), "start", &cut(&series.name, LEGEND_LETTERS))?;
            y += LINE;
        }
        for (index, (_, rule)) in chart.rules_in_sight().into_iter().enumerate() {
            self.label("text", (middle, y + 4.0), "middle", &letter(index).to_string())?;
            self.label("text", (right + 8.0, y + 4.0), "start", &cut(&rule.label, LEGEND_LETTERS))?;
            y += LINE;
        }
        Ok(())
    }

    fn dot(&mut self, tone: usize, (x, y): (f64, f64)) -> io::Result<()> {
        self.shape("circle", &format!("d{}", tone % TONES), &[("cx", x), ("cy", y), ("r", 3.6)])
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) -> io::Result<()> {
        self.shape("line", class, &[("x1", from.0), ("y1", from.1), ("x2", to.0), ("y2", to.1)])
    }

    fn label(&mut self, class: &str, (x, y): (f64, f64), anchor: &str, text: &str) -> io::Result<()> {
        let (x, y) = (format!("{x:.1}"), format!("{y:.1}"));
        self.element("text", &[("class", class), ("x", &x), ("y", &y), ("text-anchor", anchor)], text)
    }

    /// The label of the y axis, which reads from the bottom up.
    fn y_label(&mut self, text: &str) -> io::Result<()> {
        let turned = format!("translate(20 {:.1}) rotate(-90)", (TOP + BOTTOM) / 2.0);
        self.element("text", &[("class", "text"), ("transform", &turned), ("text-anchor", "middle")], text)
    }

    fn shape(&mut self, name: &str, class: &str, numbers: &[(&str, f64)]) -> io::Result<()> {
        let numbers: Vec<_> = numbers.iter().map(|(key, value)| (*key, format!("{value:.1}"))).collect();
        let mut attributes = vec![("class", class)];
        attributes.extend(numbers.iter().map(|(key, value)| (*key, value.as_str())));
        self.empty(name, &attributes)
    }

    fn empty(&mut self, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
        let start = BytesStart::new(name).with_attributes(attributes.iter().copied());
        self.xml.write_event(Event::Empty(start))
    }

    fn element(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) -> io::Result<()> {
        let start = BytesStart::new(name).with_attributes(attributes.iter().copied());
        self.xml.write_event(Event::Start(start))?;
        self.xml.write_event(Event::Text(BytesText::new(text)))?;
        self.xml.write_event(Event::End(BytesEnd::new(name)))
    }
}

fn across(place: f64) -> f64 {
    LEFT + place * (RIGHT - LEFT)
}

fn up(place: f64) -> f64 {
    BOTTOM - place * (BOTTOM - TOP)
}

fn is_inside((x, y): (f64, f64)) -> bool {
    (0.0..=1.0).contains(&x) && (0.0..=1.0).contains(&y)
}

fn curve_class(series: &Series) -> String {
    let dashes = if series.look == Look::Dashes { " dashes" } else { "" };
    format!("curve{dashes} s{}", series.tone % TONES)
}

/// The drawing commands of a curve; what cannot be shown interrupts it.
fn path(places: &[Option<(f64, f64)>]) -> String {
    let mut commands = String::new();
    let mut command = 'M';
    for place in places {
        let Some((x, y)) = place else {
            command = 'M';
            continue;
        };
        let _ = write!(commands, "{command}{:.1} {:.1}", across(*x), up(*y));
        command = 'L';
    }
    commands
}

fn cut(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    text.chars().take(letters - 1).chain(['…']).collect()
}
