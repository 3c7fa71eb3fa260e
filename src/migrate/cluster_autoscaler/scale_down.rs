//! Converts the flags on scale-down and on startup times, for each pool.

use jiff::SignedDuration;

use super::flags::FlagValues;
use crate::migrate::dropped::DroppedFields;
use crate::migrate::format_units::format_duration;
use crate::migrate::hcl::HclBody;

/// The defaults of the flags. Source: Cluster Autoscaler, `pkg/config/flags`.
const UNNEEDED: SignedDuration = SignedDuration::from_mins(10);
/// The maximum of duration arguments, ten years. Longer durations become `never`.
const LONGEST: SignedDuration = SignedDuration::from_hours(87_600);
const USED: f64 = 0.5;
const EVICTION: SignedDuration = SignedDuration::from_mins(2);
const GRACEFUL_S: i64 = 600;

/// Flags for pods that block scale-down.
const SAFE: [&str; 3] = [
    "skip-nodes-with-custom-controller-pods",
    "skip-nodes-with-local-storage",
    "skip-nodes-with-system-pods",
];

/// Converts the timeouts of a pool.
pub(super) fn set_timeouts(flags: &FlagValues, body: &mut HclBody, losses: &mut DroppedFields) {
    for (name, given) in [
        ("registration_timeout", &["max-node-provision-time"][..]),
        ("initialization_timeout", &["max-node-startup-time", "max-node-start-up-time"]),
    ] {
        let length = given.iter().find_map(|flag| flags.duration(flag, losses));
        body.set_some(name, length.map(|length| format_duration(Some(length))));
    }
}

/// Converts the flags on unready nodes, if given.
pub(super) fn convert_repair(flags: &FlagValues, body: &mut HclBody, losses: &mut DroppedFields) {
    if !flags.switch("scale-down-unready-enabled", true, losses) {
        body.set("auto_repair", false);
        return;
    }
    let Some(after) = flags.duration("scale-down-unready-time", losses) else {
        return;
    };
    for status in ["False", "Unknown"] {
        let mut inner = HclBody::default();
        inner.set("condition", "Ready");
        inner.set("status", status);
        inner.set("after", format_duration(Some(after)));
        body.add_block("repair", None, inner);
    }
}

/// Builds the `disruption` block of a pool. Defaults of the autoscaler are written explicitly,
/// because Outrigger's defaults differ.
pub(super) fn disruption_block(flags: &FlagValues, losses: &mut DroppedFields) -> HclBody {
    let mut body = HclBody::default();
    let unneeded = flags.duration("scale-down-unneeded-time", losses);
    let after = match flags.switch("scale-down-enabled", true, losses) {
        true => Some(unneeded.unwrap_or(UNNEEDED)),
        false => None,
    };
    let after = after.filter(|length| *length <= LONGEST);
    let used = flags.number("scale-down-utilization-threshold", losses);
    let percent = whole_percentage(flags, used.unwrap_or(USED), losses);
    if percent == Some(0) {
        body.set("consolidation", "empty");
    }
    body.set("consolidate_after", format_duration(after));
    convert_safety(flags, &mut body, losses);
    let threshold = percent.filter(|percent| *percent > 0);
    body.set_some("utilization_threshold", threshold);
    let eviction = flags.duration("max-pod-eviction-time", losses);
    let graceful = flags.count("max-graceful-termination-sec", losses);
    let graceful = SignedDuration::from_secs(graceful.unwrap_or(GRACEFUL_S));
    let timeout = eviction.unwrap_or(EVICTION).saturating_add(graceful);
    body.set("on_blocked", "abort");
    body.set("drain_timeout", format_duration(Some(timeout)));
    body
}

/// Returns a threshold as a whole percentage. `None` if it is above the utilization of any node.
fn whole_percentage(flags: &FlagValues, share: f64, losses: &mut DroppedFields) -> Option<i64> {
    const ALL: f64 = 100.0;
    let exact = share * ALL;
    // The utilization of a node cannot exceed 100 percent.
    if exact > ALL {
        return None;
    }
    let mut percent = 0;
    while f64::from(percent) + 0.5 <= exact {
        percent += 1;
    }
    // A threshold above zero is not rounded to zero.
    if exact > 0.0 {
        percent = percent.max(1);
    }
    if (f64::from(percent) - exact).abs() > 1e-6 {
        let why = format!("only whole percentages are supported; {percent} is used");
        let path = flags.flag_text("scale-down-utilization-threshold");
        flags.drop_flag(path, why, losses);
    }
    Some(i64::from(percent))
}

/// Converts three flags on pods that block scale-down to `safety`, which covers all of them.
fn convert_safety(flags: &FlagValues, body: &mut HclBody, losses: &mut DroppedFields) {
    let off: Vec<&str> =
        SAFE.into_iter().filter(|name| !flags.switch(name, true, losses)).collect();
    if off.len() == SAFE.len() {
        return;
    }
    body.set("safety", "conservative");
    for name in off {
        let why = "safety covers all three flags; \"standard\" would also move the pods of the \
                   other flags";
        flags.drop_flag(flags.flag_text(name), why.to_owned(), losses);
    }
}
