//! The median and the quartiles of measured values.

/// The median of measured values, and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The lower quartile.
    pub low: f64,
    pub median: f64,
    /// The upper quartile.
    pub high: f64,
}

impl Spread {
    /// The spread of these values, of which there must be at least one.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        assert!(!sorted.is_empty(), "nothing was measured");
        sorted.sort_by(f64::total_cmp);
        Self { low: quantile(&sorted, 0.25), median: quantile(&sorted, 0.5), high: quantile(&sorted, 0.75) }
    }
}

/// A quantile of sorted values. If it falls between two values, it is their weighted mean.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]), Spread { low: 1.75, median: 2.5, high: 3.25 });
    }

    #[test]
    fn one_value_is_its_own_spread() {
        assert_eq!(Spread::of([7.0]), Spread { low: 7.0, median: 7.0, high: 7.0 });
    }

    #[test]
    fn one_outlier_does_not_move_the_quartiles_far() {
        assert_eq!(Spread::of([1.0, 1.0, 1.0, 1.0, 100.0]), Spread { low: 1.0, median: 1.0, high: 1.0 });
    }
}
