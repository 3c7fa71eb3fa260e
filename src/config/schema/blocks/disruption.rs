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

    /// Schedules when nodes are checked: `drift`, `expiry`, `consolidation`, `repair` or `orphans`.
    /// Once drift, expiry or consolidation has a schedule, nodes are disrupted for that reason only
    /// after a sweep has found them, within budgets and windows. With a schedule for `orphans`, a
    /// Node that is not ready and whose instance is not listed is deleted only after a sweep has
    /// found it. Without a schedule, nodes are disrupted as soon as they are due. A `repair` sweep
    /// only reports unhealthy nodes. Empty nodes, unhealthy nodes, interruptions, failed launches,
    /// ended instances and nodes beyond `expire_hard_after` never wait for a sweep. At the top
    /// level, it applies to all clusters without a `sweep` block of that kind.
    pub(super) static SWEEP = "sweep" "KIND", PerLabel, arguments! {
        /// When sweeps run, as five-field cron. With `none`, a cluster ignores the schedule of the
        /// top level.
        schedule: ArgumentType::Text => required;
        /// Time zone of `schedule`, as an IANA name.
        timezone: ArgumentType::Text => "UTC";
        /// Each cluster runs its sweeps later by a fixed part of this duration, so that many
        /// clusters do not run them at the same time.
        jitter: duration_type(0, HOUR) => "0s";
        /// Runs a sweep once, as soon as possible, if no host could run it within 15 minutes.
        catch_up: ArgumentType::Flag => false;
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
