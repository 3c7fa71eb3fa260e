//! Overlays: overrides of the catalog's prices and capacities.
//!
//! Source: spec/scheduling.md §3.4.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use thiserror::Error;

use crate::model::instance::{Offering, Price};
use crate::model::labels::OF_OFFERINGS;
use crate::model::quantity::clip_text;
use crate::model::requirement::Requirements;

/// Prices are rounded to a millionth of a dollar, as in price lists.
const MILLION: f64 = 1e6;
/// A hundred per cent, in millionths.
const WHOLE_PPM: i64 = 1_000_000;
/// Maximum number of digits before the decimal point. No instance costs that much per hour.
const DIGITS_MAX: usize = 5;

/// Why a price adjustment cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AdjustmentError {
    /// The string does not follow the grammar.
    #[error(
        "{0:?} is no price adjustment; write it like \"-28%\", \"+10%\", \"-0.05\" or \"+0.1\""
    )]
    Malformed(String),
    /// The string has no sign, so it would be a price.
    #[error("{0:?} has no sign, so it does not say whether the price rises or falls")]
    Unsigned(String),
    /// The adjustment reduces the price by more than 100 per cent.
    #[error("{0:?} takes off more than there is")]
    BelowNothing(String),
}

/// A price adjustment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceAdjustment {
    /// A fixed price that replaces the price of the catalog.
    Absolute(Price),
    /// Millionths of a US dollar per hour that are added. Negative values are subtracted.
    Difference(i64),
    /// The price as a number of millionths of the catalog's price.
    Share(u32),
}

impl PriceAdjustment {
    /// Parses an adjustment in Karpenter's syntax: a sign, a decimal number and, for a percentage,
    /// `%`. US dollars have six decimals, percentages four.
    pub fn parse(text: &str) -> Result<Self, AdjustmentError> {
        let (sign, unsigned) = match text.as_bytes().first() {
            Some(b'+') => (1, &text[1..]),
            Some(b'-') => (-1, &text[1..]),
            Some(b'.' | b'0'..=b'9') => return Err(AdjustmentError::Unsigned(clip_text(text))),
            _ => return Err(AdjustmentError::Malformed(clip_text(text))),
        };
        let percent = unsigned.strip_suffix('%');
        let number = match percent {
            Some(percent) => parse_decimal(percent, 4),
            None => parse_decimal(unsigned, 6),
        };
        let change = sign * number.ok_or_else(|| AdjustmentError::Malformed(clip_text(text)))?;
        if percent.is_none() {
            return Ok(Self::Difference(change));
        }
        // The number has at most DIGITS_MAX digits and four more, so only a negative sum does not
        // fit.
        u32::try_from(WHOLE_PPM + change)
            .map(Self::Share)
            .map_err(|_| AdjustmentError::BelowNothing(clip_text(text)))
    }

    /// Returns the adjusted price of a catalog price, rounded to a millionth of a dollar and never
    /// negative.
    pub fn apply(self, listed: Price) -> Price {
        let millionths = listed.usd_per_h() * MILLION;
        #[expect(
            clippy::cast_precision_loss,
            reason = "an f64 holds every amount of DIGITS_MAX and six digits exactly"
        )]
        let adjusted = match self {
            Self::Absolute(price) => return price,
            Self::Difference(more) => millionths + more as f64,
            Self::Share(ppm) => millionths * f64::from(ppm) / MILLION,
        };
        // A price above the range of f64 is not adjusted.
        Price::new(adjusted.max(0.0).round() / MILLION).unwrap_or(listed)
    }
}

/// Parses an unsigned decimal number as a multiple of 10 to the power of minus `decimals`.
fn parse_decimal(text: &str, decimals: usize) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut digits = whole.bytes().chain(fraction.bytes());
    let is_valid = digits.all(|digit| digit.is_ascii_digit())
        && whole.len() <= DIGITS_MAX
        && fraction.len() <= decimals
        && !(whole.is_empty() && fraction.is_empty())
        && !text.ends_with('.');
    let padded = format!("{whole}{fraction:0<decimals$}");
    is_valid.then(|| padded.parse().ok()).flatten()
}

/// An override of the price and capacity of some instance types.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Name.
    pub name: String,
    /// The weight, from 0 to 10,000. The overlay with the highest weight for an offering applies.
    pub weight: u32,
    /// The types and offerings that the overlay applies to. Unlike the requirements of a pool, they
    /// may name the pool; the overlay then applies to the offerings of that pool.
    pub requirements: Requirements,
    /// Adjustment of the price of its offerings.
    pub price: Option<PriceAdjustment>,
    /// Capacity of its types, by Kubernetes resource name, in whole units. Processors, memory, disk
    /// and pods are not included.
    pub capacity: BTreeMap<String, i64>,
}

impl Overlay {
    /// The order in which overlays are applied: by descending weight, then by descending name. The
    /// first overlay that sets a value takes precedence.
    pub fn application_order(&self, other: &Self) -> Ordering {
        (other.weight, &other.name).cmp(&(self.weight, &self.name))
    }

    /// Returns whether the overlay may apply to instance types with these labels in a pool with the
    /// labels `pool`. The type or the pool must define each required label, well-known or not.
    pub fn covers_type(&self, pool: &Requirements, of_type: &Requirements) -> bool {
        self.requirements.iter().all(|(key, wanted)| {
            let intersection;
            let offered = match (pool.get(key), of_type.get(key)) {
                (Some(of_pool), Some(of_type)) => {
                    intersection = of_pool.intersection(of_type);
                    &intersection
                }
                (Some(offered), None) | (None, Some(offered)) => offered,
                (None, None) => return wanted.allows_absence(),
            };
            offered.has_intersection(wanted)
                || (offered.allows_absence() && wanted.allows_absence())
        })
    }

    /// Returns whether the overlay applies to this offering of a matching type, in stock or not.
    pub fn covers_offering(&self, offering: &Offering) -> bool {
        OF_OFFERINGS.iter().all(|key| {
            let wanted = self.requirements.get(key);
            wanted.is_none_or(|wanted| wanted.allows_label(offering.label_value(key)))
        })
    }

    /// Returns whether both overlays certainly apply to the same offerings, as far as this can be
    /// determined without the catalog: the labels of one are a subset of the labels of the other,
    /// and the requirements are compatible.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (left, right) = (&self.requirements, &other.requirements);
        let is_subset = [(left, right), (right, left)]
            .into_iter()
            .any(|(subset, set)| subset.iter().all(|(key, _)| set.get(key).is_some()));
        is_subset && left.check_intersection(right).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{AdjustmentError, Overlay, PriceAdjustment};
    use crate::model::id::Zone;
    use crate::model::instance::{CapacityType, Offering, Price};
    use crate::model::labels::{CAPACITY_TYPE, POOL, ZONE};
    use crate::model::requirement::{Requirement, Requirements};

    fn price(usd_per_h: f64) -> Price {
        Price::new(usd_per_h).expect("a price")
    }

    #[test]
    fn price_adjustments_never_make_a_price_negative() {
        let rows = [
            ("-28%", 0.096, 0.06912),
            ("+10%", 0.1, 0.11),
            ("-100%", 4.0, 0.0),
            ("-99.9999%", 1.0, 0.000_001),
            ("+0.1%", 1.0, 1.001),
            ("+900%", 0.5, 5.0),
            ("+99999.9999%", 1.0, 1_000.999_999),
            ("+0.1", 0.2, 0.3),
            ("-.05", 0.2, 0.15),
            ("-0.5", 0.2, 0.0),
            ("+0.000001", 0.0, 0.000_001),
            // A third of a cent is rounded as in a price list.
            ("-33.3333%", 0.01, 0.006_667),
        ];
        for (text, listed, expect) in rows {
            let adjustment = PriceAdjustment::parse(text).expect("an adjustment");
            assert_eq!(adjustment.apply(price(listed)), price(expect), "{text}");
        }
        let absolute = PriceAdjustment::Absolute(price(1.5));
        assert_eq!(absolute.apply(price(0.2)), price(1.5));
        let highest = price(f64::MAX);
        let doubled = PriceAdjustment::parse("+100%").expect("an adjustment");
        assert_eq!(doubled.apply(highest), highest);
    }

    #[test]
    fn malformed_price_adjustments_are_rejected() {
        let malformed = [
            "",
            "+",
            "-%",
            "+1.",
            "-1.2.3",
            "+1e3",
            "- 1",
            "+-1",
            "28 %",
            "+28%%",
            "+inf",
            "-x",
            "-123456",
            "+0.1234567",
            "-1.23456%",
            "+999999%0",
            "€",
        ];
        for text in malformed {
            assert!(PriceAdjustment::parse(text).is_err(), "{text:?}");
        }
        let unsigned = AdjustmentError::Unsigned("0.1".to_owned());
        assert_eq!(PriceAdjustment::parse("0.1"), Err(unsigned));
        let below = AdjustmentError::BelowNothing("-100.1%".to_owned());
        assert_eq!(PriceAdjustment::parse("-100.1%"), Err(below));
    }

    fn overlay(name: &str, weight: u32, list: &[(&str, Requirement)]) -> Overlay {
        Overlay {
            name: name.to_owned(),
            weight,
            requirements: list.iter().cloned().collect(),
            ..Overlay::default()
        }
    }

    #[test]
    fn overlays_apply_by_weight_then_by_last_name() {
        let mut all = [overlay("a", 0, &[]), overlay("c", 0, &[]), overlay("b", 5, &[])];
        all.sort_by(Overlay::application_order);
        let names: Vec<&str> = all.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["b", "c", "a"]);
    }

    /// The result equals the strict compatibility rule with both sides merged.
    #[test]
    fn type_coverage_matches_strict_compatibility() {
        let sides = [
            None,
            Some(Requirement::exists()),
            Some(Requirement::does_not_exist()),
            Some(Requirement::is_in(["1"])),
            Some(Requirement::is_in(["1", "2"])),
            Some(Requirement::not_in(["1"])),
            Some(Requirement::between(Some(2), None)),
        ];
        let of = |side: &Option<Requirement>| -> Requirements {
            side.iter().map(|it| ("family", it.clone())).collect()
        };
        let mut covered = 0;
        for (pool, of_type, wanted) in sides.iter().flat_map(|one| {
            let pairs = sides.iter().flat_map(|two| sides.iter().map(move |it| (two, it)));
            pairs.map(move |(two, three)| (one, two, three))
        }) {
            let mut merged = of(pool);
            merged.add_all(&of(of_type));
            let expect = merged.check_compatible(&of(wanted), false).is_ok();
            let it = Overlay { requirements: of(wanted), ..Overlay::default() };
            let got = it.covers_type(&of(pool), &of(of_type));
            assert_eq!(got, expect, "{pool:?} {of_type:?} {wanted:?}");
            covered += usize::from(got);
        }
        assert!((100..300).contains(&covered), "{covered}");
    }

    #[test]
    fn offering_coverage_depends_only_on_zone_and_capacity_type() {
        let offering = Offering {
            zone: Zone::from("a"),
            capacity_type: CapacityType::Spot,
            price: price(1.0),
            available: false,
            reservation: None,
        };
        let rows = [
            (vec![], true),
            (vec![(ZONE, Requirement::is_in(["a", "b"]))], true),
            (vec![(ZONE, Requirement::is_in(["b"]))], false),
            (vec![(ZONE, Requirement::not_in(["a"]))], false),
            (vec![(CAPACITY_TYPE, Requirement::is_in(["spot"]))], true),
            (vec![(CAPACITY_TYPE, Requirement::not_in(["spot"]))], false),
            (vec![(CAPACITY_TYPE, Requirement::does_not_exist())], false),
            (vec![(POOL, Requirement::is_in(["gpu"]))], true),
        ];
        for (list, expect) in rows {
            let got = overlay("x", 0, &list).covers_offering(&offering);
            assert_eq!(got, expect, "{list:?}");
        }
    }

    fn is(key: &'static str, value: &str) -> (&'static str, Requirement) {
        (key, Requirement::is_in([value]))
    }

    #[test]
    fn overlap_is_detected_when_one_overlay_includes_the_other() {
        let rows = [
            (vec![], vec![is("family", "m7i")], true),
            (vec![is("family", "m7i")], vec![is("family", "m7i")], true),
            (vec![is("family", "m7i")], vec![is("family", "m7g")], false),
            (vec![is("family", "m7i")], vec![is("family", "m7i"), is("zone", "a")], true),
            // Only the catalog knows whether any m7i is sold in this zone.
            (vec![is("family", "m7i")], vec![is("zone", "a")], false),
        ];
        for (one, other, expect) in rows {
            let (one, other) = (overlay("a", 0, &one), overlay("b", 0, &other));
            assert_eq!(one.overlaps(&other), expect, "{one:?} {other:?}");
            assert_eq!(other.overlaps(&one), expect, "{one:?} {other:?}");
        }
    }
}
