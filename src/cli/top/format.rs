//! Formats durations, quantities and fractions for the screen.

use jiff::{SignedDuration, Timestamp};

use crate::engine::views::inventory::Amount;

/// Formats the time since `since` in one or two units.
pub fn format_age(since: Timestamp, now: Timestamp) -> String {
    format_duration(now.duration_since(since))
}

/// Formats a duration in one or two units. Negative durations are shown as zero.
pub fn format_duration(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, 1..=9) => format!("{minutes}m{}s", seconds % 60),
        (0, 0, _) => format!("{minutes}m"),
        (0, 1..=9, _) => format!("{hours}h{}m", minutes % 60),
        (0, ..) => format!("{hours}h"),
        (1..=9, ..) => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

/// Formats a resource quantity, such as `1.5` CPUs or `1.5Gi` of memory.
#[expect(clippy::cast_precision_loss, reason = "the result is rounded for display")]
pub fn format_quantity(resource: &str, amount: i64) -> String {
    let (value, gib) = (amount as f64, f64::from(1 << 30));
    let text = match resource {
        "cpu" => format!("{:.1}", value / 1000.0),
        "memory" | "ephemeral-storage" => format!("{:.1}Gi", value / gib),
        _ => amount.to_string(),
    };
    text.replace(".0", "")
}

/// Returns the used fraction of a resource. `None` if the capacity is zero.
#[expect(clippy::cast_precision_loss, reason = "the result is rounded for display")]
pub fn used_share(amount: Amount) -> Option<f64> {
    (amount.there > 0).then(|| amount.taken as f64 / amount.there as f64)
}

/// Returns the part of a label or resource name after the `/` in upper case, as a column title.
pub fn column_title(name: &str) -> String {
    name.rsplit('/').next().unwrap_or(name).to_uppercase()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::{column_title, format_duration, format_quantity, used_share};
    use crate::cli::count_noun;
    use crate::engine::views::inventory::Amount;

    #[test]
    fn durations_show_at_most_two_units() {
        let check = |seconds, expect| {
            assert_eq!(format_duration(SignedDuration::from_secs(seconds)), expect);
        };
        check(-5, "0s");
        check(59, "59s");
        check(61, "1m1s");
        check(600, "10m");
        check(3_600 + 120, "1h2m");
        check(36_000, "10h");
        check(86_400 * 3 + 7_200, "3d2h");
        check(86_400 * 30, "30d");
    }

    #[test]
    fn quantities_use_readable_units() {
        assert_eq!(format_quantity("cpu", 1_500), "1.5");
        assert_eq!(format_quantity("cpu", 64_000), "64");
        assert_eq!(format_quantity("memory", 3 << 29), "1.5Gi");
        assert_eq!(format_quantity("nvidia.com/gpu", 8), "8");
        let nothing = Amount::default();
        assert_eq!(used_share(nothing), None);
        assert_eq!([1, 2].map(|count| count_noun(count, "node")), ["1 node", "2 nodes"]);
        assert_eq!(column_title("nvidia.com/gpu"), "GPU");
    }
}
