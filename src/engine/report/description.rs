//! Texts and values of a report for its outputs: log, activity, Kubernetes Events and metrics.

use std::fmt;

use jiff::SignedDuration;

use crate::model::claim::ClaimPhase;
use crate::model::id::{ClaimId, NodeName, PodKey, PoolName};
use crate::model::instance::{OfferingKey, Price};
use crate::model::pool::Reason;
use crate::scheduling::PoolRejection;
use crate::scheduling::rejection::bounded_text;

/// The cluster state is out of sync.
pub const OUT_OF_SYNC: &str = "cluster state out of sync, suspending decisions";

/// The cluster state is in sync again.
pub const IN_SYNC: &str = "cluster state in sync, resuming decisions";

/// Maximum number of pods or nodes listed in one line. A node may be planned for a thousand pods.
pub(super) const LISTED: usize = 10;

/// Time until pods were planned.
pub const DECISIONS: &str = "karpenter_pods_scheduling_decision_duration_seconds";

/// Time from the creation of a pod until it was bound.
pub const BOUND: &str = "karpenter_pods_bound_duration_seconds";

/// Time from the start of a disruption until the claim was terminated.
pub const CLAIM_ENDS: &str = "karpenter_nodeclaims_termination_duration_seconds";

/// Time from the first request until an instance was terminated.
pub const INSTANCE_ENDS: &str = "karpenter_nodeclaims_instance_termination_duration_seconds";

/// Age of terminated nodes.
pub const LIFETIMES: &str = "karpenter_nodes_lifetime_duration_seconds";

/// Instances with failed status checks.
pub const UNHEALTHY: &str = "karpenter_interruption_instance_status_unhealthy_total";

/// Nodes eligible for disruption, by reason.
pub const ELIGIBLE: &str = "karpenter_voluntary_disruption_eligible_nodes";

/// Whether a safeguard suspends changes, by safeguard.
pub const SUSPENDED: &str = "outrigger_disruption_suspended";

/// The values of the label `for` of [`SUSPENDED`].
pub const SUSPENDED_FOR: [&str; 5] = ["change", "health", "identity", "registration", "undrained"];

/// Pods in the last plan, by state.
pub const PLAN_PODS: &str = "outrigger_plan_pods";

/// The values of the label `state` of [`PLAN_PODS`].
pub const PLAN_STATES: [&str; 3] = ["pending", "placed", "unplaced"];

/// New nodes in the last plan.
pub const PLAN_CLAIMS: &str = "outrigger_plan_claims";

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Changes are suspended.
    Error,
    /// A condition that a user should examine.
    Warn,
    /// A decision or an observation.
    Info,
    /// A detail.
    Debug,
}

/// The value of a field of a log line.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A name or a time. Text lines show it without quotes.
    Shown(String),
    /// A string. Text lines show it in quotes.
    Text(String),
    /// A count.
    Count(u64),
    /// A signed number.
    Signed(i64),
    /// A number with decimals.
    Decimal(f64),
    /// True or false.
    Bool(bool),
    /// The line has no such field.
    Absent,
}

/// A field of a log line: its name and value.
pub type Field = (&'static str, FieldValue);

/// A value that text lines do not show as a name or a time.
pub(super) trait ToField {
    fn to_field(&self) -> FieldValue;
}

macro_rules! impl_to_field {
    ($($type:ty: $value:ident => $field:expr;)*) => {
        $(impl ToField for $type {
            fn to_field(&self) -> FieldValue {
                let $value = self;
                $field
            }
        })*
    };
}

impl_to_field! {
    str: value => FieldValue::Text(value.to_owned());
    bool: value => FieldValue::Bool(*value);
    u32: value => FieldValue::Count((*value).into());
    usize: value => FieldValue::Count(u64::try_from(*value).unwrap_or(u64::MAX));
    i64: value => FieldValue::Signed(*value);
    f64: value => FieldValue::Decimal(*value);
    &str: value => FieldValue::Text((*value).to_owned());
    String: value => FieldValue::Text(value.clone());
    ClaimId: value => FieldValue::Text(value.0.clone());
    NodeName: value => FieldValue::Text(value.0.clone());
    PoolName: value => FieldValue::Text(value.0.clone());
    Price: value => FieldValue::Decimal(value.usd_per_h());
}

impl<T: ToField> ToField for Option<T> {
    fn to_field(&self) -> FieldValue {
        self.as_ref().map_or(FieldValue::Absent, T::to_field)
    }
}

/// The fields of a log line in their order, as in the macros of tracing: `%name` for names and
/// times, otherwise `name` or `name = value`.
macro_rules! fields {
    () => { Vec::new() };
    (@value $name:ident) => { $name };
    (@value $name:ident $value:expr) => { $value };
    ($($(% $shown:ident)? $($name:ident $(= $value:expr)?)?),*) => {
        vec![$(
            $((stringify!($shown), FieldValue::Shown($shown.to_string())))?
            $((stringify!($name), fields!(@value $name $($value)?).to_field()))?
        ),*]
    };
}
pub(super) use fields;

/// The object of a line of the activity log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object<'r> {
    /// The whole cluster.
    Cluster,
    /// A pool.
    Pool(&'r PoolName),
    /// A claim.
    Claim(&'r ClaimId),
    /// A node.
    Node(&'r NodeName),
    /// A pod. Consecutive reports about pods are combined in one line.
    Pod(&'r PodKey),
    /// Another object.
    Other(String),
}

impl fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => Ok(()),
            Self::Pool(pool) => write!(f, "pool {}", bounded_text(pool)),
            Self::Claim(claim) => f.write_str(&bounded_text(claim)),
            Self::Node(node) => f.write_str(&bounded_text(node)),
            Self::Pod(pod) => f.write_str(&bounded_text(pod)),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// A line of the activity log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity<'r> {
    /// True if the line is a warning.
    pub warns: bool,
    /// A title of two or three words.
    pub title: &'static str,
    /// The object.
    pub object: Object<'r>,
    /// Details.
    pub text: String,
}

/// The objects of Kubernetes Events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventTarget<'r> {
    /// Each of these pods.
    Pods(&'r [PodKey]),
    /// A pod.
    Pod(&'r PodKey),
    /// A pod, if it is pending: a running pod that is rescheduled already has a node.
    PendingPod(&'r PodKey),
    /// The node of a pod.
    NodeOfPod(&'r PodKey),
    /// The node of a claim.
    NodeOfClaim(&'r ClaimId),
    /// A node, if there is one.
    Node(Option<&'r NodeName>),
}

/// A Kubernetes Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventText<'r> {
    /// The objects.
    pub target: EventTarget<'r>,
    /// True if the event has the type Warning.
    pub warns: bool,
    /// The reason and the action, in CamelCase.
    pub reason: (&'static str, &'static str),
    /// The message.
    pub note: String,
}

/// How a metric changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricChange {
    /// A counter increases by this number.
    Add(usize),
    /// A gauge is set to this number.
    Set(usize),
    /// A histogram or summary gets this value.
    Observe(f64),
}

/// A label of a metric: its name and value.
pub type Label<'r> = (&'static str, &'r str);

/// A change of a metric: its name, its labels besides the cluster, and the change.
pub type Metric<'r> = (&'static str, Vec<Label<'r>>, MetricChange);

/// Texts and values of a report for all outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Description<'r> {
    /// Severity of the log line. `None` if there is no line.
    pub severity: Option<Severity>,
    /// Message of the log line.
    pub message: &'static str,
    /// Fields of the log line besides the cluster, in their order.
    pub fields: Vec<Field>,
    /// The line of the activity log.
    pub activity: Option<Activity<'r>>,
    /// The Kubernetes Event.
    pub event: Option<EventText<'r>>,
    /// Changes of metrics.
    pub metrics: Vec<Metric<'r>>,
}

impl<'r> Description<'r> {
    /// Starts a description with its log line.
    pub(super) fn new(
        severity: impl Into<Option<Severity>>,
        message: &'static str,
        fields: Vec<Field>,
    ) -> Self {
        Self {
            severity: severity.into(),
            message,
            fields,
            activity: None,
            event: None,
            metrics: Vec::new(),
        }
    }

    /// Adds a line to the activity log with the title of the log line.
    pub(super) fn activity(self, object: Object<'r>, text: impl Into<String>) -> Self {
        let title = self.message;
        self.activity_as(title, object, text)
    }

    /// Adds a line to the activity log. The line is a warning if the log line is a warning.
    pub(super) fn activity_as(
        mut self,
        title: &'static str,
        object: Object<'r>,
        text: impl Into<String>,
    ) -> Self {
        let severity = self.severity;
        self.activity = Some(Activity {
            warns: severity.is_some_and(|severity| severity <= Severity::Warn),
            title,
            object,
            text: text.into(),
        });
        self
    }

    /// Makes the line of the activity log a warning.
    pub(super) fn activity_warns(mut self) -> Self {
        self.activity.iter_mut().for_each(|it| it.warns = true);
        self
    }

    /// Adds a Kubernetes Event.
    pub(super) fn event(
        mut self,
        target: EventTarget<'r>,
        warns: bool,
        reason: (&'static str, &'static str),
        note: String,
    ) -> Self {
        self.event = Some(EventText { target, warns, reason, note });
        self
    }

    /// Adds changes of metrics.
    pub(super) fn metrics(mut self, changes: impl IntoIterator<Item = Metric<'r>>) -> Self {
        self.metrics.extend(changes);
        self
    }

    /// Adds changes of metrics, if the condition holds.
    pub(super) fn metrics_if<const N: usize>(
        self,
        condition: bool,
        changes: [Metric<'r>; N],
    ) -> Self {
        self.metrics(changes.into_iter().filter(|_| condition))
    }
}

/// Starts a description with a warning.
pub(super) fn warn<'r>(message: &'static str, fields: Vec<Field>) -> Description<'r> {
    Description::new(Severity::Warn, message, fields)
}

/// Starts a description with a log line of the severity `Info`.
pub(super) fn info<'r>(message: &'static str, fields: Vec<Field>) -> Description<'r> {
    Description::new(Severity::Info, message, fields)
}

/// Starts a description with a log line of the severity `Debug`.
pub(super) fn debug<'r>(message: &'static str, fields: Vec<Field>) -> Description<'r> {
    Description::new(Severity::Debug, message, fields)
}

/// Increases a counter.
pub(super) fn add<'r>(name: &'static str, number: usize, labels: &[Label<'r>]) -> Metric<'r> {
    (name, labels.to_vec(), MetricChange::Add(number))
}

/// Increments a counter by one.
pub(super) fn count<'r>(name: &'static str, labels: &[Label<'r>]) -> Metric<'r> {
    add(name, 1, labels)
}

/// Sets a gauge.
pub(super) fn set<'r>(name: &'static str, value: usize, labels: &[Label<'r>]) -> Metric<'r> {
    (name, labels.to_vec(), MetricChange::Set(value))
}

/// Records a time in a histogram or summary.
pub(super) fn observe<'r>(
    name: &'static str,
    time: SignedDuration,
    labels: &[Label<'r>],
) -> Metric<'r> {
    (name, labels.to_vec(), MetricChange::Observe(time.as_secs_f64()))
}

/// Counts a disruption decision once in total and once per pool, by replacement, reason and
/// consolidation type: a single node, several nodes, or empty nodes.
pub(super) fn decisions<'r>(
    pools: impl IntoIterator<Item = &'r PoolName>,
    decision: &'static str,
    reason: Reason,
    consolidation_type: &'static str,
) -> Vec<Metric<'r>> {
    let labels = |pool: &'r str| -> [Label<'r>; 4] {
        [
            ("nodepool", pool),
            ("decision", decision),
            ("reason", reason.as_str()),
            ("consolidation_type", consolidation_type),
        ]
    };
    let pools: Vec<&str> = pools.into_iter().map(PoolName::as_str).collect();
    let only = if let [pool] = pools[..] { pool } else { "" };
    let by_pool = "karpenter_voluntary_disruption_decisions_by_nodepool_total";
    let by_pool = pools.iter().map(|pool| count(by_pool, &labels(pool)));
    let all = count("karpenter_voluntary_disruption_decisions_total", &labels(only));
    by_pool.chain([all]).collect()
}

/// The label of a pool.
pub(super) fn of_pool(pool: &PoolName) -> Label<'_> {
    ("nodepool", pool.as_str())
}

/// The zone and the capacity type of an offering as labels, empty if the offering is unknown.
pub(super) fn zone_and_capacity(offering: &Option<OfferingKey>) -> [Label<'_>; 2] {
    let (_, zone, capacity_type) = offering.as_ref().map_or(("", "", ""), parts);
    [("zone", zone), ("capacity_type", capacity_type)]
}

/// The instance type, zone and capacity type of an offering.
pub(super) fn parts(offering: &OfferingKey) -> (&str, &str, &'static str) {
    let (instance_type, zone) = (offering.instance_type.as_str(), offering.zone.as_str());
    (instance_type, zone, offering.capacity_type.as_str())
}

/// Formats the instance type, zone and capacity type of an offering.
pub(super) fn offering_text(offering: &OfferingKey) -> String {
    let (instance_type, zone, capacity_type) = parts(offering);
    format!("{instance_type} {zone} {capacity_type}")
}

/// Formats a price, to be appended to another text. Empty if the price is unknown.
pub(super) fn price_suffix(price: Option<Price>) -> String {
    price.map_or_else(String::new, |price| format!(" at ${:.4}/h", price.usd_per_h()))
}

/// Formats a duration in whole seconds.
pub(super) fn format_duration(duration: SignedDuration) -> String {
    format!("{:#}", SignedDuration::from_secs(duration.as_secs()))
}

/// Lists the first pods and the number of others.
pub(super) fn pod_names(pods: &[PodKey]) -> String {
    let names: Vec<String> = pods.iter().take(LISTED).map(ToString::to_string).collect();
    match pods.len().saturating_sub(LISTED) {
        0 => names.join(" "),
        more => format!("{} and {more} more", names.join(" ")),
    }
}

/// Formats a rejection without its code.
fn rejection_text(why: &PoolRejection) -> String {
    match &why.pool {
        Some(pool) => format!("pool {pool}: {}", why.rejection_text()),
        None => why.rejection_text(),
    }
}

/// Formats all rejections.
pub(super) fn all_reasons(reasons: &[PoolRejection]) -> String {
    let texts: Vec<String> = reasons.iter().map(rejection_text).collect();
    texts.join("; ")
}

/// The first reason, and the number of further reasons.
pub(super) fn first_reason(reasons: &[PoolRejection]) -> String {
    let text = reasons.first().map(rejection_text).unwrap_or_default();
    match reasons.len().saturating_sub(1) {
        0 => text,
        more => format!("{text}; and {more} more"),
    }
}

/// Returns the counters that increase when a claim enters a phase. Each number is the count of
/// labels that the counter has, in the order pool, zone, capacity type.
pub(super) fn phase_counters(
    phase: ClaimPhase,
    has_node: bool,
    drained: bool,
) -> &'static [(&'static str, usize)] {
    let gone =
        &[("karpenter_nodeclaims_terminated_total", 3), ("karpenter_nodes_terminated_total", 2)];
    match phase {
        ClaimPhase::Registered => &[("karpenter_nodes_created_total", 2)],
        ClaimPhase::Terminating if drained => &[("karpenter_nodes_drained_total", 1)],
        ClaimPhase::Gone if has_node => gone,
        ClaimPhase::Gone => &gone[..1],
        _ => &[],
    }
}

/// Returns the log message for a claim that enters a phase.
pub(super) fn phase_message(phase: ClaimPhase) -> &'static str {
    match phase {
        ClaimPhase::Planned => "planning claim",
        ClaimPhase::Launching => "launching claim",
        ClaimPhase::Launched => "found instance of claim",
        ClaimPhase::Registered => "registered claim",
        ClaimPhase::Initialized => "initialized claim",
        ClaimPhase::Draining => "draining claim",
        ClaimPhase::Terminating => "terminating claim",
        ClaimPhase::Gone => "terminated claim",
    }
}
