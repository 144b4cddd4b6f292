//! x
use anyhow::Result;
use tests::portfolio::{Known, adaptive, chosen, programs_of};
fn main() -> Result<()> {
    for w in [0.1, 0.3, 1.0, 3.0, 10.0, 60.0] {
        let programs = programs_of(&[w]);
        let any = adaptive(&programs, Known::Nothing, 10);
        print!("{w}: anytime mean {:.3} worst {:.3} ov {:.3} |", any.mean, any.worst, any.overhead_ratio);
        for hz in [99.0, 499.0, 999.0, 4000.0, 10000.0] {
            let s = chosen(&programs, |_| hz);
            print!(" {hz}: {:.2}/{:.2}", s.mean, s.worst);
        }
        println!();
    }
    Ok(())
}
