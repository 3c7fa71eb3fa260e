//! Rejection details: what rejects a pod and by how much. They are values that are formatted as
//! text later.

use std::fmt::{self, Display, Formatter, Write};
use std::sync::Arc;

use jiff::Timestamp;
use thiserror::Error;

use crate::model::id::TypeName;
use crate::model::instance::OfferingKey;
use crate::model::quantity::display_amount;
use crate::model::requirement::Incompatible;
use crate::model::taint::Taint;
use crate::text::sanitize::is_unsafe;

/// Maximum number of characters of one external string, such as the required values of a label.
const PART_MAX: usize = 200;

/// Maximum number of characters of a whole reason.
const TEXT_MAX: usize = 1_000;

/// Maximum number of listed domains of one rule.
pub(super) const PLACES_TOLD: usize = 5;

/// Why a pod is rejected, with the numbers involved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RejectionDetail {
    /// A message without numbers.
    #[error("{0}")]
    Told(String),
    /// The priority of the pod is too low to launch nodes.
    #[error(
        "no existing node fits it, and its priority {priority} is below {cutoff}, the minimum for \
         launching nodes"
    )]
    Priority {
        /// The priority of the pod.
        priority: i32,
        /// The minimum priority for launching nodes.
        cutoff: i32,
    },
    /// Too few pods of the gang can be scheduled.
    #[error(
        "{placed} of the {least} required pods of gang {} can be scheduled",
        bounded_text(.name)
    )]
    Gang {
        /// The gang's name.
        name: String,
        /// Number of pods that can be scheduled.
        placed: usize,
        /// Number of pods required.
        least: usize,
    },
    /// A taint of the pool that the pod does not tolerate.
    #[error("does not tolerate {}", bounded_text(.0))]
    Taint(Taint),
    /// A label of the pool that the pod does not accept.
    #[error("{0}")]
    Label(Arc<Incompatible>),
    /// A requirement that no type of the pool satisfies.
    #[error(fmt = write_types)]
    Types {
        /// The label. `None` if types satisfy each requirement, but none satisfies all.
        key: Option<String>,
        /// The required values.
        wanted: String,
        /// Number of types of the pool.
        types: usize,
    },
    /// On every type, a DaemonSet pod uses one of the host ports of the pod.
    #[error("on each of the {types} matching types, a DaemonSet pod uses one of its host ports")]
    Ports {
        /// Number of types that otherwise match.
        types: usize,
    },
    /// On every type, anti-affinity with a DaemonSet pod rejects the pod.
    #[error(
        "on each of the {types} matching types, anti-affinity with a DaemonSet pod rejects it: \
         {daemon}"
    )]
    Daemon {
        /// Number of types that otherwise match.
        types: usize,
        /// The first DaemonSet.
        daemon: String,
    },
    /// No type has enough resources.
    #[error(fmt = write_resources)]
    Resources {
        /// The resources that the closest type lacks.
        short: Vec<ResourceShortfall>,
        /// The closest type. `None` if DaemonSets exceed every type.
        nearest: Option<TypeName>,
        /// Number of types compared: those with enough of all other resources, if there are any.
        types: usize,
    },
    /// Types fit, but none has a suitable offering.
    #[error(fmt = write_offering)]
    Offering {
        /// Number of types that fit.
        types: usize,
        /// The first of these types by name.
        first: TypeName,
        /// Required zones and capacity types.
        wanted: Vec<String>,
        /// The first few of the available zones and capacity types.
        sold: Vec<String>,
    },
    /// All matching offerings are unavailable.
    #[error(fmt = write_unavailable)]
    Held(UnavailableSummary),
    /// Too little of a resource limit is left.
    #[error(fmt = write_limit)]
    Limit {
        /// The resource.
        name: String,
        /// The owner of the limit as a suffix; empty for the pool.
        whose: &'static str,
        /// The limit.
        limit: i64,
        /// The remainder after all planned nodes; negative if exceeded.
        left: i64,
        /// The smallest quantity that a node needs.
        least: i64,
        /// The type that needs this quantity.
        smallest: TypeName,
    },
    /// A limit on nodes is reached.
    #[error("nodes limit {limit}{whose} is reached")]
    Nodes {
        /// The limit.
        limit: i64,
        /// The owner of the limit as a suffix; empty for the pool.
        whose: &'static str,
    },
    /// The types that fit have too few values of a label (`min_values`).
    #[error("the pool requires {least} values of {key}, but the types that fit have {count}")]
    Values {
        /// The label.
        key: String,
        /// Number of required values.
        least: usize,
        /// Number of values that the types have.
        count: usize,
    },
    /// No new node satisfies the topology rules of the pod.
    #[error(fmt = write_domains)]
    Places {
        /// Number of domains in which the pool can launch a node.
        reachable: usize,
        /// Number of these in which every rule is satisfied.
        open: usize,
        /// The first topology rules that reject the pod.
        rules: Vec<TopologyRuleDetail>,
    },
    /// The topology rules of the pod depend on the location of in-flight nodes.
    #[error(fmt = write_undecided)]
    Unsettled {
        /// Number of in-flight nodes with unknown location. Zero if only planned nodes are
        /// concerned.
        count: usize,
        /// The first few of these nodes.
        hosts: Vec<String>,
    },
}

/// Unavailable offerings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnavailableSummary {
    /// Number of unavailable offerings.
    pub offerings: usize,
    /// The first by name.
    pub first: OfferingKey,
    /// When the first of them is retried.
    pub until: Option<Timestamp>,
    /// Whether some of these offerings are in a zone where nodes of the pool do not register.
    pub unregistered: bool,
}

/// A missing resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceShortfall {
    /// The name of the resource.
    pub name: String,
    /// The requested quantity; `cpu` in thousandths.
    pub asked: i64,
    /// The quantity that the type has after DaemonSets and overhead.
    pub left: i64,
}

/// Kind of a topology rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleKind {
    /// Pod affinity.
    Affinity,
    /// Pod anti-affinity.
    AntiAffinity,
    /// Topology spread with this `maxSkew`.
    Spread(u32),
    /// Pod anti-affinity of other pods.
    Repelled,
}

impl RuleKind {
    /// The spelling in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Affinity => "affinity",
            Self::AntiAffinity => "anti_affinity",
            Self::Repelled => "anti_affinity_of_others",
            Self::Spread(_) => "spread",
        }
    }
}

/// A topology rule and its obstacles.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopologyRuleDetail {
    /// The kind of the rule.
    pub kind: RuleKind,
    /// The topology keys of the rule.
    pub keys: Vec<String>,
    /// Number of domains in which the pool can launch a node.
    pub reachable: usize,
    /// Number of these in which the rule is satisfied.
    pub open: usize,
    /// Number of matching pods in all domains.
    pub pods: u64,
    /// The first few domains of the matching pods. For topology spread, the first few domains with
    /// the fewest matching pods.
    pub places: Vec<DomainDetail>,
}

/// A topology domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainDetail {
    /// The value of the label.
    pub name: String,
    /// Number of matching pods there.
    pub pods: u32,
    /// Whether the pool can launch a node there.
    pub is_reachable: bool,
}

impl RejectionDetail {
    /// Creates a message without numbers.
    pub fn from_message(text: &str) -> Self {
        Self::Told(shortened(text, TEXT_MAX))
    }

    /// Returns the reason as one line of bounded length.
    pub fn text(&self) -> String {
        shortened(self, TEXT_MAX)
    }
}

/// Returns an external string with bounded length, without control characters.
pub fn bounded_text(text: impl Display) -> String {
    shortened(text, PART_MAX)
}

fn shortened(text: impl Display, max_chars: usize) -> String {
    let mut out = Bounded { text: String::new(), left: max_chars };
    if write!(out, "{text}").is_err() {
        out.text.push('…');
    }
    out.text
}

/// A writer that stops after a number of characters.
struct Bounded {
    text: String,
    left: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(if is_unsafe(char) { ' ' } else { char });
        }
        Ok(())
    }
}

/// Formats a quantity, cores as decimals.
pub fn format_quantity(name: &str, amount: i64) -> String {
    if name != "cpu" || amount % 1000 == 0 {
        return display_amount(name, amount);
    }
    let sign = if amount < 0 { "-" } else { "" };
    let (cores, thousandths) = (amount.unsigned_abs() / 1000, amount.unsigned_abs() % 1000);
    format!("{sign}{cores}.{thousandths:03}").trim_end_matches('0').to_owned()
}

fn write_types(
    key: &Option<String>,
    wanted: &str,
    types: &usize,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let of_pool = format_args!("none of the pool's {types} instance types");
    match key {
        Some(key) => write!(f, "requires {key} {wanted}, which {of_pool} has"),
        None => write!(f, "{of_pool} satisfies all of: {wanted}"),
    }
}

fn write_offering(
    types: &usize,
    first: &TypeName,
    wanted: &[String],
    sold: &[String],
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let wanted = wanted.join(", ");
    write!(f, "{types} types fit ({first}, …), but none has an offering with {wanted}; ")?;
    match sold.len() {
        0 => f.write_str("no offering is available"),
        _ => write!(f, "available: {}", sold.join(", ")),
    }
}

fn write_limit(
    name: &str,
    whose: &str,
    limit: &i64,
    left: &i64,
    least: &i64,
    smallest: &TypeName,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let used = format_quantity(name, limit.saturating_sub(*left));
    let limit = format_quantity(name, *limit);
    write!(f, "{name} limit {limit}{whose}")?;
    if *left < 0 {
        return write!(f, " is exceeded: {used} is in use");
    }
    let (left, least) = (format_quantity(name, *left), format_quantity(name, *least));
    write!(
        f,
        ": {used} in use or planned, {left} left; the smallest fitting type, {smallest}, needs \
         {least}"
    )
}

fn write_unavailable(summary: &UnavailableSummary, f: &mut Formatter<'_>) -> fmt::Result {
    let (count, first) = (summary.offerings, &summary.first);
    write!(f, "all {count} matching offerings are unavailable: {first}, …")?;
    if summary.unregistered {
        f.write_str(
            "; nodes of the pool do not register in some zones; only one at a time is tried there",
        )?;
    }
    match summary.until {
        Some(until) => write!(f, "; next retry at {until}"),
        None => Ok(()),
    }
}

fn write_resources(
    short: &[ResourceShortfall],
    nearest: &Option<TypeName>,
    types: &usize,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    let asked = list_amounts(short, |resource| resource.asked);
    write!(f, "needs {asked}; ")?;
    let after = "after DaemonSets and overhead";
    match (nearest, short) {
        (None, _) => write!(f, "none of {types} types has room for the DaemonSets alone"),
        (Some(nearest), [only]) => {
            let left = format_quantity(&only.name, only.left);
            write!(
                f,
                "the largest of {types} types that fit otherwise, {nearest}, has {left} left \
                 {after}"
            )
        }
        (Some(nearest), _) => write!(
            f,
            "the closest of {types} matching types, {nearest}, has {} left {after}",
            list_amounts(short, |resource| resource.left)
        ),
    }
}

/// Lists one quantity of each missing resource.
fn list_amounts(short: &[ResourceShortfall], amount: fn(&ResourceShortfall) -> i64) -> String {
    let amounts = short.iter().map(|resource| {
        let name = &resource.name;
        format!("{name} {}", format_quantity(name, amount(resource)))
    });
    amounts.collect::<Vec<_>>().join(", ")
}

fn write_domains(
    reachable: &usize,
    open: &usize,
    rules: &[TopologyRuleDetail],
    f: &mut Formatter<'_>,
) -> fmt::Result {
    match open {
        0 => f.write_str("no new node would satisfy its rules about other pods: ")?,
        _ => write!(
            f,
            "its rules hold in {open} of {reachable} domains, but the placement of the other pods \
             leaves none for it: "
        )?,
    }
    for (index, rule) in rules.iter().enumerate() {
        if index > 0 {
            f.write_str("; ")?;
        }
        write!(f, "{rule}")?;
    }
    let each_holds = rules.len() > 1 && rules.iter().all(|rule| rule.open > 0);
    if *open == 0 && each_holds {
        f.write_str("; each rule holds in some domain, but no domain satisfies all of them")?;
    }
    Ok(())
}

fn write_undecided(count: &usize, hosts: &[String], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("its rules about other pods depend on the location of ")?;
    match (count, hosts) {
        (0, _) => f.write_str("the nodes that are planned now"),
        (1, [only]) => write!(f, "{only}"),
        _ => {
            let more = if *count > hosts.len() { ", …" } else { "" };
            let hosts = hosts.join(", ");
            write!(f, "{count} in-flight nodes: {hosts}{more}")
        }
    }
}

impl Display for TopologyRuleDetail {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let keys = self.keys.join(" and ");
        match self.kind {
            RuleKind::Affinity => write!(f, "pod affinity on {keys}")?,
            RuleKind::AntiAffinity => write!(f, "pod anti-affinity on {keys}")?,
            RuleKind::Repelled => write!(f, "anti-affinity of other pods on {keys}")?,
            RuleKind::Spread(skew) => write!(f, "topology spread over {keys} with maxSkew {skew}")?,
        }
        let Self { reachable, open, .. } = self;
        match (*reachable, self.places.is_empty()) {
            (0, _) => return f.write_str(" cannot hold: no new node would have the label"),
            (_, false) => write!(f, " holds in {open} of {reachable} domains")?,
            _ if self.pods == 0 => return f.write_str(" cannot hold: no pod matches"),
            _ => return write!(f, " holds on no new node ({} matching pods)", self.pods),
        }
        let places: Vec<String> = self
            .places
            .iter()
            .map(|place| {
                let reach =
                    if place.is_reachable { "" } else { " and no node can be launched there" };
                format!("{} has {}{reach}", place.name, place.pods)
            })
            .collect();
        write!(f, " ({})", places.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::{PART_MAX, RejectionDetail, TEXT_MAX, bounded_text, format_quantity};

    #[test]
    fn foreign_text_is_truncated_and_kept_on_one_line() {
        let wild = "a\u{1b}[31m\n\u{202e}".to_owned() + &"x".repeat(100_000);
        let text = bounded_text(&wild);
        assert!(text.starts_with("a [31m  xxx"), "{text}");
        assert_eq!(text.chars().count(), PART_MAX + 1);
        assert!(text.ends_with('…'));
        assert_eq!(RejectionDetail::from_message(&wild).text().chars().count(), TEXT_MAX + 1);
        let gang = RejectionDetail::Gang { name: wild, placed: 1, least: 2 };
        assert!(gang.text().ends_with("… can be scheduled"), "{}", gang.text());
        assert_eq!(bounded_text("plain"), "plain");
    }

    #[test]
    fn cpu_quantities_are_shown_as_decimal_cores() {
        let cases = [
            (400_000, "400"),
            (255_900, "255.9"),
            (-500, "-0.5"),
            (1, "0.001"),
            (i64::MIN, "-9223372036854775.808"),
        ];
        for (amount, expect) in cases {
            assert_eq!(format_quantity("cpu", amount), expect, "{amount}");
        }
        assert_eq!(format_quantity("memory", 9 << 30), "9.0Gi");
    }
}
