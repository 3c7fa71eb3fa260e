//! Kubelet eviction thresholds.

use crate::model::node_class::kubelet::Threshold;
use crate::model::quantity::parse_whole;

/// Parses a percentage with at most two decimals, or a quantity that is not negative.
pub(super) fn parse_threshold(text: &str) -> Option<Threshold> {
    match text.strip_suffix('%') {
        Some(percent) => percent_hundredths(percent).map(Threshold::Share),
        None => parse_whole(text)
            .ok()
            .filter(|amount| *amount >= 0)
            .map(|amount| Threshold::Amount(amount, text.to_owned())),
    }
}

/// Hundredths of a percentage with at most two decimals, from 0 to 100.
fn percent_hundredths(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_decimal = [whole, fraction]
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_decimal || fraction.len() > 2 || whole.len() > 3 {
        return None;
    }
    let hundredths = whole.parse::<u32>().ok()? * 100;
    let rest = format!("{fraction:0<2}").parse::<u32>().ok()?;
    Some(hundredths + rest).filter(|sum| *sum <= 10_000)
}

#[cfg(test)]
mod tests {
    use super::percent_hundredths;

    #[test]
    fn percentages_have_two_decimals_at_most() {
        for (text, expect) in [
            ("10", Some(1000)),
            ("0", Some(0)),
            ("100", Some(10_000)),
            ("5.5", Some(550)),
            ("0.05", Some(5)),
            ("100.01", None),
            ("1.234", None),
            ("-1", None),
            ("", None),
            (".5", None),
            ("1.", None),
            ("1e1", None),
        ] {
            assert_eq!(percent_hundredths(text), expect, "{text:?}");
        }
    }
}
