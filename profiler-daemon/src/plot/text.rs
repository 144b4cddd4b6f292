//! A chart in plain characters.

use super::axis::Axis;
use super::{Chart, Look, Series, letter};

/// Lines between the axes.
const ROWS: usize = 16;
/// The narrowest chart: its labels would not fit any longer.
const MIN_COLUMNS: usize = 40;
/// What series are drawn with, by their position; the last is for all further ones.
const GLYPHS: [char; 8] = ['*', '+', '-', '.', 'x', 'o', '#', '='];
/// What a mark is drawn with.
const MARK: char = '@';

/// The lines; see [`Chart::text`].
pub(super) fn draw(chart: &Chart, columns: usize) -> String {
    let columns = columns.max(MIN_COLUMNS);
    let gutter = gutter(&chart.y);
    let mut grid = Grid::new(columns - gutter - 2);
    grid.rules(chart);
    // In reverse, so that the first series lies on top.
    for (index, series) in chart.series.iter().enumerate().rev() {
        grid.series(chart, series, glyph(index));
    }
    for (place, _) in chart.marks_in_sight() {
        grid.put(place, MARK);
    }
    let mut lines = vec![chart.title.clone(), chart.subtitle.clone(), chart.y.label.clone()];
    lines.extend(grid.lines(&chart.y, gutter));
    lines.push(x_labels(&chart.x, grid.width, gutter));
    lines.push(format!("{:>columns$}", chart.x.label));
    lines.extend(legend(chart));
    let cut = |line: String| line.chars().take(columns).collect::<String>().trim_end().to_owned() + "\n";
    lines.into_iter().filter(|line| !line.is_empty()).map(cut).collect()
}

fn glyph(index: usize) -> char {
    GLYPHS[index.min(GLYPHS.len() - 1)]
}

/// Width of the labels of the y axis.
fn gutter(axis: &Axis) -> usize {
    axis.ticks().iter().map(|tick| tick.label.chars().count()).max().unwrap_or(0)
}

/// The characters inside the axes, from the top down.
struct Grid {
    width: usize,
    cells: Vec<Vec<char>>,
}

impl Grid {
    fn new(width: usize) -> Self {
        Self { width, cells: vec![vec![' '; width]; ROWS] }
    }

    fn column(&self, place: f64) -> f64 {
        place * (self.width - 1) as f64
    }

    fn row(place: f64) -> f64 {
        (1.0 - place) * (ROWS - 1) as f64
    }

    /// Puts a character at a place, if that is inside.
    fn put(&mut self, (x, y): (f64, f64), character: char) {
        let (column, row) = (self.column(x).round(), Self::row(y).round());
        let inside = (0.0..self.width as f64).contains(&column) && (0.0..ROWS as f64).contains(&row);
        if inside {
            self.cells[row as usize][column as usize] = character;
        }
    }

    fn rules(&mut self, chart: &Chart) {
        let mut free = 0; // the next column without a letter: each has one of its own
        for (index, (place, _)) in chart.rules_in_sight().into_iter().enumerate() {
            let column = (self.column(place).round() as usize).min(self.width - 1);
            self.cells[1..].iter_mut().for_each(|row| row[column] = ':');
            let column = column.max(free).min(self.width - 1);
            self.cells[0][column] = letter(index);
            free = column + 1;
        }
    }

    fn series(&mut self, chart: &Chart, series: &Series, glyph: char) {
        let places: Vec<_> = series.points.iter().map(|point| chart.place(*point)).collect();
        places.iter().flatten().for_each(|place| self.put(*place, glyph));
        if series.look == Look::Dots {
            return;
        }
        for pair in places.windows(2) {
            if let [Some(from), Some(to)] = pair {
                self.segment(*from, *to, glyph);
            }
        }
    }

    /// The characters between two places, without a gap.
    fn segment(&mut self, from: (f64, f64), to: (f64, f64), glyph: char) {
        let columns = (self.column(to.0) - self.column(from.0)).abs();
        let rows = (Self::row(to.1) - Self::row(from.1)).abs();
        let steps = columns.max(rows).ceil().max(1.0);
        for step in 0..=steps as usize {
            let part = step as f64 / steps;
            self.put((from.0 + part * (to.0 - from.0), from.1 + part * (to.1 - from.1)), glyph);
        }
    }

    /// The rows with the y axis to their left.
    fn lines(&self, axis: &Axis, gutter: usize) -> Vec<String> {
        let mut labels = vec![String::new(); ROWS];
        for tick in axis.ticks() {
            labels[(Self::row(tick.place).round() as usize).min(ROWS - 1)] = tick.label;
        }
        let line = |(label, cells): (&String, &Vec<char>)| {
            let edge = if label.is_empty() { '|' } else { '+' };
            format!("{label:>gutter$} {edge}{}", cells.iter().collect::<String>())
        };
        let rows = labels.iter().zip(&self.cells).map(line);
        rows.chain([format!("{:gutter$} +{}", "", "-".repeat(self.width))]).collect()
    }
}

/// The labels under the x axis; one that would touch its neighbour is left out.
fn x_labels(axis: &Axis, width: usize, gutter: usize) -> String {
    let mut line = String::new();
    for tick in axis.ticks() {
        let letters = tick.label.chars().count();
        let middle = gutter + 2 + (tick.place * (width - 1) as f64).round() as usize;
        let start = middle.saturating_sub(letters / 2);
        let end = line.chars().count();
        if (end == 0 || start > end) && start + letters <= gutter + 2 + width {
            line.push_str(&" ".repeat(start - end.min(start)));
            line.push_str(&tick.label);
        }
    }
    line
}

fn legend(chart: &Chart) -> Vec<String> {
    let series =
        chart.series.iter().enumerate().map(|(index, series)| format!("  {}  {}", glyph(index), series.name));
    let rules = chart.rules_in_sight().into_iter().enumerate();
    let rules = rules.map(|(index, (_, rule))| format!("  {}  {}", letter(index), rule.label));
    let marks = chart.marks_in_sight().map(|(_, mark)| format!("  {MARK}  {}", mark.label));
    series.chain(rules).chain(marks).collect()
}
