//! Schema tables of disruption limits: budgets, maintenance windows, cool-downs.
//! They must not depend on the code that reads them.

use super::{HOUR, LONGEST, MINUTE, duration_type};
use crate::config::schema::ArgumentType;

argument_constants! {
    /// Disruption reasons that it applies to; all if empty.
    REASONS =
        reasons: ArgumentType::SomeOf(&["empty", "underutilized", "drifted", "expired"]) => [];
    /// Start times as five-field cron, in place of `during`.
    SCHEDULE = schedule: ArgumentType::Text;
    /// How long it applies from each start time of `schedule`.
    DURATION = duration: duration_type(MINUTE, 744 * HOUR);
    /// Time zone of `schedule`, as an IANA name.
    TIMEZONE = timezone: ArgumentType::Text => "UTC";
}

block_types! {
    /// Limits how many nodes are disrupted at the same time or within a period. All budgets apply.
    /// A pool without a budget has a budget of 10%.
    pub(super) static BUDGET = "budget", Many, arguments! {
        /// Maximum number of nodes that are disrupted at the same time. Set `nodes`, `rate` or
        /// both.
        nodes: ArgumentType::Allowance;
        /// Maximum number of nodes that are disrupted within any minute, hour or day.
        rate: ArgumentType::Rate;
        REASONS;
        /// When the budget applies; always if missing.
        during: ArgumentType::Reference("schedule");
        SCHEDULE;
        DURATION;
        TIMEZONE;
    };

    /// A maintenance window. If a window has `allow`, disruption starts only within such a window.
    /// Disruption never starts within a window that has `deny`.
    pub(super) static WINDOW = "window", Many, arguments! {
        /// Allows or denies the start of disruption within the window.
        action: ArgumentType::OneOf(&["allow", "deny"]) => required;
        REASONS;
        /// When the window is open.
        during: ArgumentType::Reference("schedule");
        SCHEDULE;
        DURATION;
        TIMEZONE;
    };

    /// How long consolidation pauses after other actions in the cluster.
    static COOL_DOWN = "cool_down", Once, arguments! {
        /// Pause after an instance is launched.
        after_launch: duration_type(0, LONGEST) => "0s";
        /// Pause after an instance is terminated.
        after_end: duration_type(0, LONGEST) => "0s";
        /// Pause after a node could not be disrupted.
        after_failure: duration_type(0, LONGEST) => "0s";
    };

    /// Limits on voluntary disruption in the cluster, in addition to those of its pools.
    pub(super) static CLUSTER_DISRUPTION = "disruption", Once, &[], [&BUDGET, &WINDOW, &COOL_DOWN];
}
