//! What stopped a pod and by how much it missed, in values that become text where somebody reads
//! them. It must not know how that was found out.

use std::fmt::{self, Display, Formatter, Write};
use std::sync::Arc;

use jiff::Timestamp;

use crate::model::id::TypeName;
use crate::model::instance::OfferingKey;
use crate::model::quantity::display_amount;
use crate::model::requirement::Incompatible;
use crate::model::taint::Taint;
use crate::text::sanitize::disturbs;

/// Characters of one text of elsewhere, such as the values that a pod wants of a label.
const PART_MAX: usize = 200;

/// Characters of a whole reason.
const TEXT_MAX: usize = 1_000;

/// Places of one rule that are told by name.
pub(super) const PLACES_TOLD: usize = 5;

/// What stopped a pod, with the nearest miss where there is a number to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectionDetail {
    /// There is no number to it: words alone.
    Told(String),
    /// Its priority is too low to cause nodes to be made.
    Priority {
        /// Its priority.
        own: i32,
        /// The least that would do.
        cutoff: i32,
    },
    /// Too few of its gang have a place.
    Gang {
        /// The gang's name.
        name: String,
        /// How many have a place.
        placed: usize,
        /// How many need one for any to be of use.
        least: usize,
    },
    /// A taint of the pool that it does not tolerate.
    Taint(Taint),
    /// A label of the pool that is not as it wants.
    Label(Arc<Incompatible>),
    /// What no type of the pool is.
    Types {
        /// The label; none where each is to be had, but not all of them on one type.
        key: Option<String>,
        /// What is wanted.
        wanted: String,
        /// How many types the pool has.
        types: usize,
    },
    /// A daemon of every type binds one of its host ports.
    Ports {
        /// How many types would do otherwise.
        types: usize,
    },
    /// A daemon of every type must be away from it, or it from the daemon.
    Daemon {
        /// How many types would do otherwise.
        types: usize,
        /// The first of the daemons.
        daemon: String,
    },
    /// No type has enough.
    Resources {
        /// What the nearest type is short of.
        short: Vec<ResourceShortfall>,
        /// The type that has most of it; none where daemons alone are too much for every type.
        nearest: Option<TypeName>,
        /// How many types it was chosen from: those with enough of everything else, if there are
        /// any.
        types: usize,
    },
    /// Types fit, but none is sold where and how it is wanted.
    Offering {
        /// How many types fit.
        types: usize,
        /// The first of them by name.
        first: TypeName,
        /// What is wanted of zone and capacity type.
        wanted: Vec<String>,
        /// Where and how they are sold, the first few.
        sold: Vec<String>,
    },
    /// Everything that would do is held down after a refusal.
    Held {
        /// How many offerings that is.
        offerings: usize,
        /// The first of them.
        first: OfferingKey,
        /// When the first is asked for again.
        until: Option<Timestamp>,
        /// Whether some are of a zone where nodes of the pool do not register.
        unregistered: bool,
    },
    /// A limit on a resource leaves too little.
    Limit {
        /// The resource.
        name: String,
        /// Whose limit it is, as words that follow it; nothing for the pool's own.
        whose: &'static str,
        /// The limit.
        limit: i64,
        /// What is left of it, all that is planned taken out; below zero where it is exceeded.
        left: i64,
        /// What a node takes of it at least.
        least: i64,
        /// The type that takes so little.
        smallest: TypeName,
    },
    /// A limit on nodes is reached.
    Nodes {
        /// The limit.
        limit: i64,
        /// Whose limit it is, as words that follow it; nothing for the pool's own.
        whose: &'static str,
    },
    /// The types that would do have too few values of a label between them.
    Values {
        /// The label.
        key: String,
        /// How many values are wanted.
        least: usize,
        /// How many there are.
        count: usize,
    },
    /// Nodes could be made, but not where its rules about other pods hold.
    Places {
        /// Places that the pool could make a node in.
        reachable: usize,
        /// Those of them where every rule holds.
        open: usize,
        /// The rules, the first few.
        rules: Vec<TopologyRuleDetail>,
    },
    /// Its rules about other pods may hold, once it is known where nodes are that are to come.
    Unsettled {
        /// How many hosts are on their way of which that is not known; none where it is only nodes
        /// of the same plan.
        count: usize,
        /// The first few of them.
        hosts: Vec<String>,
    },
}

/// A resource that a type is short of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceShortfall {
    /// Its name.
    pub name: String,
    /// What is asked for; `cpu` in thousandths.
    pub asked: i64,
    /// What the type has after daemons and overhead.
    pub left: i64,
}

/// What kind of rule about other pods' places it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleKind {
    /// Near certain pods.
    Affinity,
    /// Away from certain pods.
    AntiAffinity,
    /// Spread evenly, with this skew at most.
    Spread(u32),
    /// Other pods have to be away from it.
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

/// A rule about other pods' places, and what stands in the way of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TopologyRuleDetail {
    /// Its kind.
    pub kind: RuleKind,
    /// The labels whose values are places.
    pub keys: Vec<String>,
    /// How many places the pool could make a node in.
    pub reachable: usize,
    /// In how many of them the rule holds.
    pub open: usize,
    /// How many pods there are anywhere that it speaks of.
    pub pods: u64,
    /// Where the pods are that it speaks of; where pods are spread, the emptiest places. The first
    /// few.
    pub places: Vec<DomainDetail>,
}

/// A place of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DomainDetail {
    /// The value of the label.
    pub name: String,
    /// How many of the pods that the rule speaks of are there.
    pub pods: u32,
    /// Whether the pool could make a node there.
    pub is_reachable: bool,
}

impl RejectionDetail {
    /// Words alone.
    pub fn told(text: &str) -> Self {
        Self::Told(shortened(text, TEXT_MAX))
    }

    /// The reason in words, whatever its names hold on one line of bounded length.
    pub fn text(&self) -> String {
        shortened(self, TEXT_MAX)
    }
}

/// A text of elsewhere, bounded, without what could disturb a terminal or a log.
pub fn part(text: impl Display) -> String {
    shortened(text, PART_MAX)
}

fn shortened(text: impl Display, most: usize) -> String {
    let mut out = Bounded {
        text: String::new(),
        left: most,
    };
    if write!(out, "{text}").is_err() {
        out.text.push('…');
    }
    out.text
}

/// Takes so many characters and no more; who writes is stopped there.
struct Bounded {
    text: String,
    left: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for char in text.chars() {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(if disturbs(char) { ' ' } else { char });
        }
        Ok(())
    }
}

/// An amount as people write it, cores as decimals.
pub fn shown(name: &str, amount: i64) -> String {
    if name != "cpu" || amount % 1000 == 0 {
        return display_amount(name, amount);
    }
    let sign = if amount < 0 { "-" } else { "" };
    let (whole, rest) = (amount.unsigned_abs() / 1000, amount.unsigned_abs() % 1000);
    format!("{sign}{whole}.{rest:03}")
        .trim_end_matches('0')
        .to_owned()
}

impl Display for RejectionDetail {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told(text) => f.write_str(text),
            Self::Priority { own, cutoff } => write!(
                f,
                "no host has room for it, and its priority {own} is below {cutoff}, from which on \
                 pods cause nodes to be made"
            ),
            Self::Gang {
                name,
                placed,
                least,
            } => write!(
                f,
                "{placed} of the {least} pods of its gang {} have a place",
                part(name)
            ),
            Self::Taint(taint) => write!(f, "does not tolerate {}", part(taint)),
            Self::Label(no) => write!(f, "{no}"),
            Self::Types { key, wanted, types } => match key {
                Some(key) => write!(
                    f,
                    "{key}: wanted {wanted}, which no instance type of the pool has, of {types}"
                ),
                None => write!(
                    f,
                    "no instance type of the pool, of {types}, is all of this: {wanted}"
                ),
            },
            Self::Ports { types } => write!(
                f,
                "a daemon of every type that suits, {types} in all, binds one of its host ports"
            ),
            Self::Daemon { types, daemon } => apart(f, *types, daemon),
            Self::Resources {
                short,
                nearest,
                types,
            } => resources(f, short, nearest.as_ref(), *types),
            Self::Values { key, least, count } => write!(
                f,
                "{key} wants {least} values in the types that would do; they have {count}"
            ),
            Self::Places {
                reachable,
                open,
                rules,
            } => places(f, (*reachable, *open), rules),
            Self::Unsettled { count, hosts } => unsettled(f, *count, hosts),
            Self::Offering {
                types,
                first,
                wanted,
                sold,
            } => offering(f, (*types, first), (wanted, sold)),
            Self::Held {
                offerings,
                first,
                until,
                unregistered,
            } => held(f, (*offerings, first), *until, *unregistered),
            Self::Limit {
                name,
                whose,
                limit,
                left,
                least,
                smallest,
            } => limit_text(f, (name, whose), [*limit, *left, *least], smallest),
            Self::Nodes { limit, whose } => write!(f, "nodes limit {limit}{whose} is reached"),
        }
    }
}

fn offering(
    f: &mut Formatter<'_>,
    (types, first): (usize, &TypeName),
    (wanted, sold): (&[String], &[String]),
) -> fmt::Result {
    let wanted = wanted.join(", ");
    write!(
        f,
        "{types} types fit ({first}, …), but none is offered with {wanted}; "
    )?;
    match sold.len() {
        0 => f.write_str("none is offered at all"),
        _ => write!(f, "there is {}", sold.join(", ")),
    }
}

fn limit_text(
    f: &mut Formatter<'_>,
    (name, whose): (&str, &str),
    [limit, left, least]: [i64; 3],
    smallest: &TypeName,
) -> fmt::Result {
    let used = shown(name, limit.saturating_sub(left));
    let limit = shown(name, limit);
    if left < 0 {
        return write!(
            f,
            "{name} limit {limit}{whose} is exceeded: {used} is in use"
        );
    }
    let (left, least) = (shown(name, left), shown(name, least));
    write!(
        f,
        "{name} limit {limit}{whose}, of which {used} is in use or planned, leaves {left}; the \
         smallest fitting type, {smallest}, has {least}"
    )
}

fn held(
    f: &mut Formatter<'_>,
    (offerings, first): (usize, &OfferingKey),
    until: Option<Timestamp>,
    unregistered: bool,
) -> fmt::Result {
    write!(
        f,
        "all {offerings} offerings that would do are held down: {first}, …"
    )?;
    if unregistered {
        f.write_str(
            "; nodes of the pool do not register in some zones, where one at a time is tried",
        )?;
    }
    match until {
        Some(until) => write!(f, "; one is asked for again at {until}"),
        None => Ok(()),
    }
}

fn apart(f: &mut Formatter<'_>, types: usize, daemon: &str) -> fmt::Result {
    write!(
        f,
        "on every type that suits, {types} in all, a daemon runs that it must not be near or that \
         must not be near it: {daemon}"
    )
}

fn resources(
    f: &mut Formatter<'_>,
    short: &[ResourceShortfall],
    nearest: Option<&TypeName>,
    types: usize,
) -> fmt::Result {
    let list = |amount: fn(&ResourceShortfall) -> i64| {
        let one =
            |own: &ResourceShortfall| format!("{} {}", own.name, shown(&own.name, amount(own)));
        short.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    write!(f, "needs {}; ", list(|own| own.asked))?;
    let rest = "after DaemonSets and overhead";
    match (nearest, short) {
        (None, _) => write!(f, "no type of {types} has room for its DaemonSets alone"),
        (Some(nearest), [only]) => {
            let left = shown(&only.name, only.left);
            write!(
                f,
                "the largest of {types} types that fit the rest, {nearest}, leaves {left} {rest}"
            )
        }
        (Some(nearest), _) => write!(
            f,
            "the nearest of {types} types that suit, {nearest}, leaves {} {rest}",
            list(|own| own.left)
        ),
    }
}

fn places(
    f: &mut Formatter<'_>,
    (reachable, open): (usize, usize),
    rules: &[TopologyRuleDetail],
) -> fmt::Result {
    match open {
        0 => f.write_str("nodes could be made, but none where its rules hold: ")?,
        _ => write!(
            f,
            "its rules hold in {open} of {reachable} places, but no order of the other pods let \
             it have one: "
        )?,
    }
    for (at, rule) in rules.iter().enumerate() {
        if at > 0 {
            f.write_str("; ")?;
        }
        write!(f, "{rule}")?;
    }
    let alone = rules.len() > 1 && rules.iter().all(|rule| rule.open > 0);
    if open == 0 && alone {
        f.write_str("; each of them somewhere, and nowhere all")?;
    }
    Ok(())
}

fn unsettled(f: &mut Formatter<'_>, count: usize, hosts: &[String]) -> fmt::Result {
    f.write_str("its rules about other pods may hold once it is known where ")?;
    match (count, hosts) {
        (0, _) => f.write_str("the nodes are that are planned now"),
        (1, [only]) => write!(f, "{only} is"),
        _ => {
            let more = if count > hosts.len() { ", …" } else { "" };
            let hosts = hosts.join(", ");
            write!(f, "{count} nodes are that are on their way: {hosts}{more}")
        }
    }
}

impl Display for TopologyRuleDetail {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let keys = self.keys.join(" and ");
        match self.kind {
            RuleKind::Affinity => write!(f, "affinity by {keys}")?,
            RuleKind::AntiAffinity => write!(f, "anti-affinity by {keys}")?,
            RuleKind::Repelled => write!(f, "anti-affinity of other pods by {keys}")?,
            RuleKind::Spread(skew) => {
                write!(f, "spread over {keys} with a skew of {skew} at most")?
            }
        }
        let Self {
            reachable, open, ..
        } = self;
        match (*reachable, self.places.is_empty()) {
            (0, _) => return f.write_str(" holds nowhere, for no node to be made has the label"),
            (_, false) => write!(f, " holds in {open} of {reachable} places to be had")?,
            _ if self.pods == 0 => return f.write_str(" holds nowhere, for there is no such pod"),
            _ => return write!(f, " holds on no new node ({} such pods)", self.pods),
        }
        let one = |place: &DomainDetail| {
            let reach = if place.is_reachable {
                ""
            } else {
                " and no node can be made there"
            };
            format!("{} has {}{reach}", place.name, place.pods)
        };
        let places: Vec<String> = self.places.iter().map(one).collect();
        write!(f, " ({})", places.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::{PART_MAX, RejectionDetail, TEXT_MAX, part, shown};

    #[test]
    fn texts_of_elsewhere_are_bounded_and_on_one_line() {
        let wild = "a\u{1b}[31m\n\u{202e}".to_owned() + &"x".repeat(100_000);
        let text = part(&wild);
        assert!(text.starts_with("a [31m  xxx"), "{text}");
        assert_eq!(text.chars().count(), PART_MAX + 1);
        assert!(text.ends_with('…'));
        assert_eq!(
            RejectionDetail::told(&wild).text().chars().count(),
            TEXT_MAX + 1
        );
        let gang = RejectionDetail::Gang {
            name: wild,
            placed: 1,
            least: 2,
        };
        assert!(gang.text().ends_with("… have a place"), "{}", gang.text());
        assert_eq!(part("plain"), "plain");
    }

    #[test]
    fn cores_are_shown_as_decimals() {
        let cases = [
            (400_000, "400"),
            (255_900, "255.9"),
            (-500, "-0.5"),
            (1, "0.001"),
            (i64::MIN, "-9223372036854775.808"),
        ];
        for (amount, expect) in cases {
            assert_eq!(shown("cpu", amount), expect, "{amount}");
        }
        assert_eq!(shown("memory", 9 << 30), "9.0Gi");
    }
}
