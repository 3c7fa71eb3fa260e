//! Formats quantities, durations and prices in the largest unit that fits.

use jiff::SignedDuration;
use serde_json::Value;

use crate::config::schema::duration_text;
use crate::model::overlay::PriceAdjustment;
use crate::model::quantity::Resources;

const GIB: i64 = 1 << 30;
const GIGA: i64 = 1_000_000_000;

/// Formats a whole number, with a binary unit if it fits.
fn format_whole(amount: i64) -> Value {
    const UNITS: [(&str, i64); 3] = [("Gi", GIB), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    match UNITS.iter().find(|(_, unit)| amount != 0 && amount % unit == 0) {
        Some((name, unit)) => Value::from(format!("{}{name}", amount / unit)),
        None => Value::from(amount),
    }
}

/// Formats a quantity of a resource. The unit of `cpu` is thousandths.
pub(crate) fn format_quantity(name: &str, amount: i64) -> Value {
    match name {
        "cpu" if amount % 1000 != 0 => Value::from(format!("{amount}m")),
        "cpu" => Value::from(amount / 1000),
        _ => format_whole(amount),
    }
}

/// Formats a map of quantities.
pub(crate) fn format_quantities<'a>(all: impl IntoIterator<Item = (&'a str, i64)>) -> Value {
    let amounts = all.into_iter();
    Value::Object(
        amounts.map(|(name, amount)| (name.to_owned(), format_quantity(name, amount))).collect(),
    )
}

/// Formats the requests of a pod.
pub(crate) fn format_requests(all: &Resources) -> Value {
    format_quantities(all.iter().filter(|(name, _)| *name != "pods"))
}

/// Formats a duration, or `never`.
pub(crate) fn format_duration(length: Option<SignedDuration>) -> String {
    length.map_or("never".to_owned(), |length| {
        duration_text(i64::try_from(length.as_millis()).unwrap_or(i64::MAX))
    })
}

/// Formats the size of a volume for Karpenter. `None` if Karpenter cannot express it.
pub(crate) fn format_volume_size(bytes: i64) -> Option<String> {
    // The maximum that Karpenter accepts in each unit. Source: spec/aws.md §1.1.
    const MOST: [(&str, i64, i64); 2] = [("Gi", GIB, 59_000), ("G", GIGA, 64_000)];
    let (name, unit, _) = MOST
        .iter()
        .find(|(_, unit, maximum)| bytes % unit == 0 && (1..=*maximum).contains(&(bytes / unit)))?;
    Some(format!("{}{name}", bytes / unit))
}

/// Formats a price adjustment.
pub(crate) fn format_adjustment(adjustment: PriceAdjustment) -> Value {
    match adjustment {
        PriceAdjustment::Absolute(price) => Value::from(price.usd_per_h()),
        PriceAdjustment::Difference(millionths) => Value::from(format_signed(millionths, 6)),
        PriceAdjustment::Share(ppm) => {
            let difference = i64::from(ppm) - 1_000_000;
            Value::from(format!("{}%", format_signed(difference, 4)))
        }
    }
}

/// Formats a signed number with this number of decimals.
fn format_signed(number: i64, decimals: usize) -> String {
    let sign = if number < 0 { '-' } else { '+' };
    let digits = format!("{:0>width$}", number.unsigned_abs(), width = decimals + 1);
    let (whole, fraction) = digits.split_at(digits.len() - decimals);
    let fraction = fraction.trim_end_matches('0');
    match fraction {
        "" => format!("{sign}{whole}"),
        _ => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{format_adjustment, format_quantity, format_volume_size};
    use crate::model::overlay::PriceAdjustment;
    use crate::model::quantity::{parse_milli, parse_whole};

    #[test]
    fn formatted_quantities_parse_to_the_same_amount() {
        for amount in [0, 1, 999, 1000, 1024, 1_048_577, 3 << 20, 5 << 30, 7 << 40] {
            let text = |name| match format_quantity(name, amount) {
                serde_json::Value::String(text) => text,
                other => other.to_string(),
            };
            assert_eq!(parse_milli(&text("cpu")), Ok(amount), "{amount}");
            assert_eq!(parse_whole(&text("memory")), Ok(amount), "{amount}");
        }
        assert_eq!(format_quantity("memory", 8 << 30), json!("8Gi"));
        assert_eq!(format_quantity("cpu", 2500), json!("2500m"));
    }

    #[test]
    fn price_adjustments_round_trip() {
        for text in ["-28%", "+10.5%", "-100%", "+0.1", "-0.000001", "+12", "-99.9999%"] {
            let adjustment = PriceAdjustment::parse(text).expect("an adjustment");
            assert_eq!(format_adjustment(adjustment), json!(text));
        }
    }

    #[test]
    fn volume_sizes_use_units_that_karpenter_accepts() {
        for (bytes, expect) in [
            (50 << 30, Some("50Gi")),
            (64_000_000_000_000, Some("64000G")),
            (1_000_000_000, Some("1G")),
            (1_500_000_000, None),
        ] {
            assert_eq!(format_volume_size(bytes).as_deref(), expect, "{bytes}");
        }
    }
}
