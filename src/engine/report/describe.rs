//! The table of all reports: their log lines, activity, Kubernetes Events and metrics.
//!
//! Reasons of events and names of metrics are those of Karpenter if they have the same meaning
//! (spec/disruption.md §5.2). Other metrics are named `outrigger_*`.

use jiff::SignedDuration;

use crate::engine::report::Report;
use crate::engine::report::description::{
    BOUND, CLAIM_ENDS, DECISIONS, Description, ELIGIBLE, EventTarget, FieldValue, IN_SYNC,
    INSTANCE_ENDS, LIFETIMES, LISTED, Metric, OUT_OF_SYNC, Object, PLAN_CLAIMS, PLAN_PODS,
    PLAN_STATES, SUSPENDED, Severity, ToField as _, UNHEALTHY, add, all_reasons, count, debug,
    decisions, fields, first_reason, format_duration, info, observe, of_pool, offering_text, parts,
    phase_counters, phase_message, pod_names, price_suffix, set, warn, zone_and_capacity,
};
use crate::model::id::{ClaimId, NodeName, PoolName};
use crate::model::instance::CapacityType;
use crate::model::pool::Reason;
use crate::provider::{FailureKind, Interruption};
use crate::scheduling::UnschedulablePod;
use crate::scheduling::rejection::bounded_text;
use crate::scheduling::static_pools::Shortfall;
use crate::state::candidates::NodeHealth;
use crate::state::disruption_blockers::InvalidInput;
use crate::state::drain_blockers::format_blockers;
use crate::state::sweeps::SweepResult;

const PROVISION: &str = "Provision";
const DISRUPT: &str = "Disrupt";
const DRAIN: &str = "Drain";
const REGISTER: &str = "Register";

impl Report {
    /// Returns the texts and values of the report for all outputs. In observe mode, decisions are
    /// described as what Outrigger would do, and are not counted.
    #[expect(clippy::too_many_lines, reason = "a table with one arm per kind")]
    #[rustfmt::skip]
    pub fn describe(&self, managed: bool) -> Description<'_> {
        let mode = if managed { "manage" } else { "observe" };
        match self {
            Self::Ready => info("cluster ready, starting decisions", fields![mode])
                .activity_as("ready", Object::Cluster, "starting decisions"),
            Self::Frozen(why) => warn(OUT_OF_SYNC, fields![why])
                .activity_as("out of sync", Object::Cluster, why)
                .metrics([count("outrigger_out_of_sync_total", &[])]),
            Self::Thawed => info(IN_SYNC, fields![])
                .activity_as("in sync", Object::Cluster, "resuming decisions"),
            Self::Mismatch(why) => {
                let message = "API server and instances belong to different clusters, \
                               suspending all changes";
                Description::new(Severity::Error, message, fields![code = why.code(), %why])
                    .activity_as("wrong cluster", Object::Cluster, bounded_text(why))
                    .metrics([suspended("identity", true)])
            }
            Self::Matches => {
                let message = "API server and instances belong to the same cluster";
                info(message, fields![])
                    .activity_as("right cluster", Object::Cluster, message)
                    .metrics([suspended("identity", false)])
            }
            Self::SameInstance { instance, nodes } => {
                let nodes: Vec<&str> = nodes.iter().take(LISTED).map(NodeName::as_str).collect();
                let message = "blocked voluntary disruption of nodes with the same providerID";
                warn(message, fields![%instance, nodes = nodes.join(" ")])
            }
            Self::EndsHeld(held) => {
                let (id, instances, total) = (&held.id, held.claims.len(), held.total);
                let message = "too many instances would be terminated without a drain, waiting \
                               for approval";
                let text = format!(
                    "{instances} of {total} instances would be terminated without a drain: \
                     outrigger reload --accept {id}"
                );
                warn(message, fields![id, instances, total])
                    .activity_as("approval needed", Object::Cluster, text)
                    .metrics([suspended("undrained", true)])
            }
            Self::EndsReleased => {
                let message = "no termination without a drain needs approval";
                info(message, fields![])
                    .activity_as("released", Object::Cluster, message)
                    .metrics([suspended("undrained", false)])
            }
            Self::Unregistered { pool, zone, failures, until } => {
                let message = "nodes fail to register, holding launches until a test launch; \
                               check the image, user data, subnet and security groups";
                let text = format!("nodes fail to register in {zone}; next test launch at {until}");
                warn(message, fields![%pool, %zone, failures, %until])
                    .activity_as("launches held", Object::Pool(pool), text)
                    .metrics([suspended("registration", true)])
            }
            Self::EndedEarly { claim, pool, instance, offering, why, pods } => {
                let (instance_type, zone, _) = parts(offering);
                let fields = fields![%pool, %claim, %instance, %instance_type, %zone, why];
                let why = bounded_text(why);
                let note = format!("instance {instance} of pool {pool} ended at launch: {why}");
                let event = ("FailedLaunch", PROVISION);
                warn("instance ended before its node registered", fields)
                    .activity_as("ended early", Object::Claim(claim), format!("{instance}: {why}"))
                    .event(EventTarget::Pods(pods), true, event, note)
            }
            Self::Registers { pool, zone, left } => {
                let text = format!("launches in {zone} no longer wait for nodes to register");
                info("resumed launches held for failed registration", fields![%pool, %zone])
                    .activity_as("launches resumed", Object::Pool(pool), text)
                    .metrics([suspended("registration", *left > 0)])
            }
            Self::Planned { pending, placed, claims, unplaced, price } => {
                let text = format!(
                    "{pending} pending pods: {placed} on existing nodes, {claims} new nodes, \
                     {unplaced} unschedulable"
                );
                let pods = PLAN_STATES.into_iter().zip([pending, placed, unplaced]);
                let fields = fields![pending, placed, claims, unplaced, usd_per_h = price];
                info("computed plan", fields)
                    .activity(Object::Cluster, text)
                    .metrics([count("outrigger_plans_total", &[]), set(PLAN_CLAIMS, *claims, &[])])
                    .metrics(pods.map(|(state, pods)| set(PLAN_PODS, *pods, &[("state", state)])))
            }
            Self::Decided(waited) => {
                let names = [DECISIONS, "outrigger_pods_decided_seconds"];
                let both = |time: &SignedDuration| names.map(|name| observe(name, *time, &[]));
                debug("planned pods for the first time", fields![pods = waited.len()])
                    .metrics(waited.iter().flat_map(both))
            }
            // Bound pods are too many for the log. The time may be negative, because clocks differ.
            Self::PodBound(took) => Description::new(None, "", fields![])
                .metrics([observe(BOUND, (*took).max(SignedDuration::ZERO), &[])]),
            Self::PodStarted(took) => Description::new(None, "", fields![]).metrics([observe(
                "karpenter_pods_startup_duration_seconds", (*took).max(SignedDuration::ZERO), &[],
            )]),
            Self::Unplaced(UnschedulablePod { pod, reasons }) => {
                let texts: Vec<String> = reasons.iter().map(|it| it.rejection_text()).collect();
                let note = format!("cannot schedule pod: {}", texts.join("; "));
                let event = ("FailedScheduling", PROVISION);
                warn("cannot schedule pod", fields![%pod, reasons = all_reasons(reasons)])
                    .activity(Object::Pod(pod), first_reason(reasons))
                    .event(EventTarget::PendingPod(pod), true, event, note)
            }
            Self::AllAnswered => info("no unschedulable pods remain", fields![])
                .metrics([set(PLAN_PODS, 0, &[("state", "unplaced")])]),
            Self::Short(Shortfall { need, missing, reasons }) => {
                let text = format!("{missing} missing: {}", first_reason(reasons));
                let fields = fields![%need, missing, reasons = all_reasons(reasons)];
                warn("cannot provide required capacity", fields)
                    .activity_as("capacity missing", Object::Other(bounded_text(need)), text)
            }
            Self::Enough(need) => info("required capacity no longer missing", fields![%need]),
            Self::ClaimPlanned {
                claim, pool, offering, price, offerings, reason, relaxed, pods,
            } => {
                let (instance_type, zone, capacity_type) = parts(offering);
                let pod_count = pods.len();
                let message = if managed { "planned claim" } else { "would launch claim" };
                let fields = fields![
                    %pool, %claim, mode, %instance_type, %zone, capacity_type,
                    usd_per_h = price, offerings, pod_count, pods = pod_names(pods)
                ];
                let text = format!(
                    "pool {pool}: {}{} for {pod_count} pods",
                    offering_text(offering), price_suffix(Some(*price))
                );
                let note =
                    format!("planned for claim {claim}: {instance_type} in {zone} for pool {pool}");
                let relaxed = ("min_values_relaxed", if *relaxed { "true" } else { "false" });
                let labels = [of_pool(pool), ("reason", reason), relaxed];
                let created = count("karpenter_nodeclaims_created_total", &labels);
                info(message, fields)
                    .activity(Object::Claim(claim), text)
                    .event(EventTarget::Pods(pods), false, ("Nominated", PROVISION), note)
                    .metrics_if(managed, [created])
            }
            Self::ClaimLaunched { claim, instance, offering, price } => {
                let (instance_type, zone, capacity_type) = parts(offering);
                let fields = fields![
                    %claim, %instance, %instance_type, %zone, capacity_type,
                    usd_per_h = price
                ];
                let text =
                    format!("{instance}: {}{}", offering_text(offering), price_suffix(*price));
                let labels = [("capacity_type", capacity_type)];
                info("launched claim", fields)
                    .activity(Object::Claim(claim), text)
                    .metrics([count("outrigger_launches_total", &labels)])
            }
            Self::ClaimRefused { claim, refusals } => {
                let offerings = refusals.len();
                let first = refusals.first().map(|it| it.offering.to_string());
                let kind = refusals.first().map(|it| it.kind.as_str());
                let text = kind.zip(first.as_ref()).map(|(kind, first)| format!("{kind} {first}"));
                let text = format!("{offerings} offerings, first {}", text.unwrap_or_default());
                warn("launch refused", fields![%claim, offerings, first, kind])
                    .activity(Object::Claim(claim), text)
                    .metrics(refusals.iter().map(|refusal| {
                        let (_, zone, capacity_type) = parts(&refusal.offering);
                        let reason = ("reason", refusal.kind.as_str());
                        let offering = [("zone", zone), ("capacity_type", capacity_type)];
                        count("outrigger_ice_total", &[offering[0], offering[1], reason])
                    }))
            }
            Self::ClaimRenewed { claim, next } => {
                debug("replaced claim after failed launch", fields![%claim, next])
            }
            Self::ClaimNamed { claim, name: next } => debug("named claim", fields![%claim, %next]),
            Self::ClaimDenied { claim, why } => {
                info("denied claim, limit reached", fields![%claim, why])
                    .activity_as("denied claim", Object::Claim(claim), why)
                    .activity_warns()
            }
            Self::BoundEarly { claim, node, pods, after } => {
                let after_ms = i64::try_from(after.as_millis()).unwrap_or(i64::MAX);
                info("bound pods early", fields![%claim, %node, pods, after_ms])
                    .activity(Object::Node(node), format!("{pods} pods"))
            }
            Self::NotEarly { claim, why } => warn("cannot bind pods early", fields![%claim, why])
                .activity_as("cannot bind early", Object::Claim(claim), why),
            Self::Adopted { node, pool } => info("adopted Karpenter node", fields![%node, %pool])
                .activity_as("adopted node", Object::Node(node), Object::Pool(pool).to_string()),
            Self::NotAdopted { pool, nodes } => {
                let message = "cannot adopt Karpenter nodes, no pool with a matching name";
                let text = format!("{nodes} Karpenter nodes, no pool with this name");
                warn(message, fields![%pool, nodes])
                    .activity_as("cannot adopt", Object::Pool(pool), text)
            }
            Self::ClaimPhase { claim, pool, node, offering, phase, drained, found } => {
                let name = phase.as_str();
                let [zone, capacity_type] = zone_and_capacity(offering);
                let labels = [of_pool(pool), zone, capacity_type];
                let counters = phase_counters(*phase, node.is_some(), *drained).iter();
                info(phase_message(*phase), fields![%claim, node, phase = name])
                    .activity_as("claim phase", node_or_claim(node, claim), name)
                    .metrics(counters.filter(|_| managed && !found)
                        .map(|(name, known)| count(name, &labels[..*known])))
            }
            Self::Retire { claim, pool, node, capacity_type, reason, price, pods } => {
                let reason_name = reason.as_str();
                let (message, title) = match reason {
                    _ if !managed => ("would disrupt node", "would disrupt node"),
                    Reason::TimedOut => ("terminating claim, timed out", "terminating claim"),
                    _ => ("disrupting node", "disrupting node"),
                };
                let fields = fields![
                    %claim, mode, node, reason = reason_name, usd_per_h = price, pods
                ];
                let text = format!(
                    "{reason_name}, pool {pool}{}, {pods} pods to reschedule", price_suffix(*price)
                );
                let note = format!("disrupting node: {reason_name}, {pods} pods to reschedule");
                let event = ("DisruptionTerminating", DISRUPT);
                let by_reason = ("reason", reason_name);
                let capacity_type = capacity_type.map_or("", CapacityType::as_str);
                let labels = [of_pool(pool), by_reason, ("capacity_type", capacity_type)];
                let is_decision = managed && *reason == Reason::Empty;
                let decisions = decisions([pool], "delete", *reason, "empty");
                info(message, fields)
                    .activity_as(title, node_or_claim(node, claim), text)
                    .event(EventTarget::Node(node.as_ref()), false, event, note)
                    .metrics(decisions.into_iter().filter(|_| is_decision))
                    .metrics_if(managed, [
                        count("karpenter_nodeclaims_disrupted_total", &labels),
                        add("karpenter_pods_disruption_initiated_total", *pods, &[by_reason]),
                    ])
            }
            Self::Eligible { reason, nodes } => {
                let reason = reason.as_str();
                debug("counted nodes eligible for disruption", fields![reason, nodes])
                    .metrics([set(ELIGIBLE, *nodes, &[("reason", reason)])])
            }
            Self::Consolidates { pools, nodes, claims, before, after } => {
                let message =
                    if managed { "consolidating nodes" } else { "would consolidate nodes" };
                let fields = fields![
                    mode, nodes, claims, usd_per_h_before = before, usd_per_h_after = after
                ];
                let (before, after) = (before.usd_per_h(), after.usd_per_h());
                let text =
                    format!("{nodes} nodes to {claims} nodes, ${before:.4}/h to ${after:.4}/h");
                let does = if *claims == 0 { "delete" } else { "replace" };
                let many = if *nodes == 1 { "single" } else { "multi" };
                let decisions = decisions(pools, does, Reason::Underutilized, many);
                info(message, fields)
                    .activity(Object::Cluster, text)
                    .metrics(decisions.into_iter().filter(|_| managed))
            }
            Self::Drifted { node, why } => info("detected drift", fields![%node, why])
                .activity(Object::Node(node), *why),
            Self::Ailing(NodeHealth { unready, total }) => {
                let message = "too many nodes are not ready, suspending voluntary disruption";
                let text = format!(
                    "{unready} of {total} nodes are not ready, suspending voluntary disruption"
                );
                warn(message, fields![unready, total])
                    .activity_as("nodes not ready", Object::Cluster, text)
                    .metrics([suspended("health", true)])
            }
            Self::Well(NodeHealth { unready, total }) => {
                let message = "enough nodes are ready, resuming voluntary disruption";
                let text = format!("{unready} of {total} nodes are not ready");
                info(message, fields![unready, total])
                    .activity_as("nodes ready", Object::Cluster, text)
                    .metrics([suspended("health", false)])
            }
            Self::Held(hold) => {
                let (id, nodes, total) = (&hold.id, hold.nodes.len(), hold.total);
                let message = "configuration would disrupt too many nodes, waiting for approval";
                let text = format!(
                    "{nodes} of {total} nodes would be disrupted: outrigger reload --accept {id}"
                );
                warn(message, fields![id, nodes, total])
                    .activity_as("approval needed", Object::Cluster, text)
                    .metrics([suspended("change", true)])
            }
            Self::Unheld { id, nodes } => {
                let message = "configuration approved or superseded, releasing held nodes";
                let text = format!("{nodes} nodes may be disrupted");
                info(message, fields![id, nodes])
                    .activity_as("released", Object::Cluster, text)
                    .metrics([suspended("change", false)])
            }
            Self::Interrupted { claim, node, instance, what, ignored } => {
                let kind = what.as_str();
                let (reason, warns) = interruption_reason(*what);
                let fields = fields![%claim, node, %instance, what = kind, ignored];
                let text = format!("{kind}{}", if *ignored { ": ignored" } else { "" });
                let then = if *ignored { "ignored" } else { "disrupting node" };
                let note = format!("received interruption notice {kind}: {then}");
                info("received interruption notice", fields)
                    .activity_as("interruption notice", node_or_claim(node, claim), text)
                    .activity_warns()
                    .event(EventTarget::Node(node.as_ref()), warns, (reason, DISRUPT), note)
                    .metrics_if(*what == Interruption::Failed, [count(UNHEALTHY, &[])])
                    .metrics([count("outrigger_interruptions_total", &[("kind", kind)])])
            }
            Self::Kept { claim, reason, why } => {
                let reason = reason.as_str();
                let note = format!("cancelled disruption ({reason}): {why}");
                let event = ("DisruptionBlocked", DISRUPT);
                let name = "karpenter_voluntary_disruption_failed_validations_total";
                info("cancelled disruption", fields![%claim, reason, why])
                    .activity(Object::Claim(claim), format!("{reason}: {why}"))
                    .event(EventTarget::NodeOfClaim(claim), false, event, note)
                    .metrics([count(name, &[("reason", reason)])])
            }
            Self::Paused { pool, until, why } => {
                let until = until.map(|it| it.to_string());
                let end = until.as_ref().map(|it| format!("until {it}"));
                let text = format!("{}: {why}", end.as_deref().unwrap_or("until resumed"));
                warn("paused voluntary disruption", fields![pool, until, why])
                    .activity_as("paused", pool_or_cluster(pool), text)
            }
            Self::Resumed { pool } => info("resumed voluntary disruption", fields![pool])
                .activity_as("resumed", pool_or_cluster(pool), ""),
            Self::Shut { pool, reason, why } => {
                let reason = reason.as_str();
                info("blocked disruption", fields![%pool, reason, why])
                    .activity(Object::Pool(pool), format!("{reason}: {why}"))
            }
            Self::SweepSkipped { sweep, at } => {
                let (sweep, text) = (sweep.as_str(), format!("skipped the sweep of {at}"));
                warn("skipped a sweep that was missed", fields![sweep, %at])
                    .activity_as(sweep, Object::Cluster, text)
            }
            Self::Swept { sweep, at, result } => {
                let SweepResult { disrupted, blocked, observed } = result;
                let (sweep, found) = (sweep.as_str(), result.found());
                let text = format!("found {found}: {disrupted} disrupted, {blocked} blocked");
                info("swept nodes", fields![sweep, %at, found, disrupted, blocked, observed])
                    .activity_as(sweep, Object::Cluster, text)
                    .metrics([add("outrigger_sweeps_total", 1, &[("sweep", sweep)])])
            }
            Self::DrainHeld { claim, node, since, held_by, more, deadline } => {
                let (since_s, held_by) = (since.as_secs(), format_blockers(held_by, *more));
                let until = deadline.map(|at| at.to_string()).unwrap_or_default();
                let text = format!("for {}: {held_by}", format_duration(*since));
                let note = format!("drain blocked: {held_by}");
                let event = ("FailedDraining", DRAIN);
                warn("drain blocked", fields![%claim, %node, since_s, held_by, until])
                    .activity(Object::Node(node), text)
                    .event(EventTarget::Node(Some(node)), true, event, note)
                    .metrics([count("outrigger_drains_held_total", &[])])
            }
            Self::DrainForced { claim, node, held_by, more } => {
                let held_by = format_blockers(held_by, *more);
                let note = format!("terminating node, drain timed out: {held_by}");
                let event = ("TerminationGracePeriodExpiring", DRAIN);
                warn("terminating node, drain timed out", fields![%claim, %node, held_by])
                    .activity_as("drain timed out", Object::Node(node), held_by)
                    .event(EventTarget::Node(Some(node)), true, event, note)
                    .metrics([count("outrigger_drains_forced_total", &[])])
            }
            Self::Lingers { claim, instance, since } => {
                let since_s = since.as_secs();
                let text =
                    format!("{instance}: termination requested {} ago", format_duration(*since));
                warn("instance does not terminate", fields![%claim, %instance, since_s])
                    .activity_as("slow termination", Object::Claim(claim), text)
                    .metrics([count("outrigger_slow_terminations_total", &[])])
            }
            Self::Evicted { pod, reason } => {
                let reason = reason.as_str();
                let note = format!("evicted pod, node disrupted: {reason}");
                info("evicted pod", fields![%pod, reason])
                    .activity(Object::Pod(pod), format!("node disrupted: {reason}"))
                    .event(EventTarget::Pod(pod), false, ("Evicted", DRAIN), note)
                    .metrics([count("karpenter_pods_drained_total", &[("reason", reason)])])
            }
            Self::Ended { node, pool, took, ending, age } => {
                let (took_s, age_s) = (took.as_secs(), age.as_secs());
                let text = format!("{}, after {}", Object::Pool(pool), format_duration(*took));
                let ended = "karpenter_nodes_termination_duration_seconds";
                let labels = [of_pool(pool)];
                info("terminated node", fields![%pool, %node, took_s, age_s])
                    .activity(Object::Node(node), text)
                    .metrics([observe(ended, *took, &labels), observe(LIFETIMES, *age, &labels)])
                    .metrics([observe(CLAIM_ENDS, *took, &labels)])
                    .metrics(ending.map(|time| observe(INSTANCE_ENDS, time, &labels)))
            }
            Self::Lacking { node, instance_type, resource, promised, found } => {
                let message = "node has less capacity than its instance type";
                let fields = fields![%node, %instance_type, resource, promised, found];
                let text =
                    format!("{resource} {found}, instance type {instance_type} has {promised}");
                let note =
                    format!("{resource} is {found}, instance type {instance_type} has {promised}");
                let event = ("FailedConsistencyCheck", REGISTER);
                warn(message, fields)
                    .activity_as("less capacity", Object::Node(node), text)
                    .event(EventTarget::Node(Some(node)), true, event, note)
            }
            Self::Unguarded { node } => {
                let message = "node registered without taint karpenter.sh/unregistered";
                let event = ("UnregisteredTaintMissing", REGISTER);
                warn(message, fields![%node])
                    .activity_as("missing taint", Object::Node(node), "karpenter.sh/unregistered")
                    .event(EventTarget::Node(Some(node)), true, event, message.to_owned())
            }
            Self::EvictRefused { pod, text } => {
                let note = format!("eviction of pod {pod} refused, retrying: {text}");
                info("eviction refused, retrying", fields![%pod, text])
                    .activity_as("eviction refused", Object::Pod(pod), text)
                    .event(EventTarget::NodeOfPod(pod), true, ("FailedDraining", DRAIN), note)
                    .metrics([count("outrigger_evictions_refused_total", &[])])
            }
            Self::Orphan { node } => {
                let message = "garbage collecting node without instance";
                info(message, fields![%node])
                    .activity_as("orphaned node", Object::Node(node), message)
            }
            Self::LeftClosed { nodes } => {
                let message = "switched to observe mode, disrupted nodes remain tainted; \
                               run `outrigger release` to untaint them";
                let text = format!("{nodes} disrupted nodes; untaint them with outrigger release");
                warn(message, fields![nodes]).activity_as("left tainted", Object::Cluster, text)
            }
            Self::Misread(InvalidInput { of, why }) => {
                warn("ignoring invalid value", fields![of, why])
                    .activity_as("invalid value", Object::Other(of.clone()), why)
            }
            Self::Failed { command, kind, text } => {
                // A throttled call fails for each of its claims, and all of them are sent again.
                let is_retry = *command == "launch" && *kind == FailureKind::Throttled;
                let level = if is_retry { debug } else { warn };
                let kind = kind.as_str();
                let labels = [("command", *command), ("kind", kind)];
                level("command failed", fields![command, kind, text])
                    .activity(Object::Other((*command).to_owned()), format!("{kind}: {text}"))
                    .metrics([count("outrigger_failures_total", &labels)])
            }
            Self::Stranger { instance, why } => {
                let object = Object::Other(bounded_text(instance));
                warn("ignoring instance", fields![%instance, why])
                    .activity_as("ignored instance", object, why)
            }
        }
    }
}

/// Returns Karpenter's reason of the event, and whether the event is a warning.
fn interruption_reason(notice: Interruption) -> (&'static str, bool) {
    match notice {
        Interruption::Rebalance => ("SpotRebalanceRecommendation", false),
        Interruption::Maintenance => ("InstanceUnhealthy", true),
        Interruption::Reservation => ("CapacityReservationInstanceInterrupted", true),
        Interruption::Spot => ("SpotInterrupted", true),
        Interruption::Stopping => ("InstanceTerminating", true),
        Interruption::Failed => ("InstanceUnhealthy", true),
    }
}

/// Sets whether a safeguard suspends changes.
fn suspended(safeguard: &'static str, is_suspended: bool) -> Metric<'static> {
    set(SUSPENDED, usize::from(is_suspended), &[("for", safeguard)])
}

fn node_or_claim<'r>(node: &'r Option<NodeName>, claim: &'r ClaimId) -> Object<'r> {
    node.as_ref().map_or(Object::Claim(claim), Object::Node)
}

fn pool_or_cluster(pool: &Option<PoolName>) -> Object<'_> {
    pool.as_ref().map_or(Object::Cluster, Object::Pool)
}
