//! Is the profile precise enough, and if not, how long would it take?

use super::table::IntervalTable;

/// Functions of less than this share are nobody's goal.
const LEAST_SHARE: f64 = 0.01;

/// What a profile shall reach: the long-run shares of its top functions known this well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// Half the width of the interval over the share, .05 for ±5%.
    pub relative: f64,
    /// How many of the largest functions.
    pub top: usize,
}

impl Default for Goal {
    fn default() -> Self {
        Goal { relative: 0.05, top: 4 }
    }
}

/// How far a profile is from its [`Goal`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Precision {
    /// The widest relative half width of the goal's functions; 1 and more: nothing is known.
    pub ratio: f64,
    /// Whether the goal is reached.
    pub converged: bool,
    /// CPU time of the target until it is, at the present rate (s): 0 when reached, `None` where nothing can be said.
    pub cpu_s_to_converge: Option<f64>,
}

impl Goal {
    /// Whether the goal is reached. May be asked again and again while the profile grows: the answer "reached" is
    /// wrong as seldom as the table's confidence says, however often it is asked.
    pub fn judge(&self, table: &IntervalTable) -> Precision {
        let top = table.order().iter().take(self.top.max(1)).map(|index| &table.rows()[*index]);
        let relative = |row: &super::table::Row| {
            let half = (row.long_run.high - row.share).max(row.share - row.long_run.low);
            2.0 * half / row.share
        };
        let ratio = top.filter(|row| row.share >= LEAST_SHARE).map(relative).fold(f64::NAN, f64::max);
        let ratio = if ratio.is_nan() { 1.0 } else { ratio };
        let converged = ratio <= self.relative;
        let cpu_s = table.weight_ns() * 1e-9;
        let more_s = cpu_s * ((ratio / self.relative).powi(2) - 1.0);
        let cpu_s_to_converge =
            if converged { Some(0.0) } else { Some(more_s).filter(|s| s.is_finite() && *s > 0.0) };
        Precision { ratio, converged, cpu_s_to_converge }
    }
}
