//! Renders an explained pool as text and as one JSON object.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::model::instance::{OfferingKey, Price};
use crate::plan::explain_pool::{ExplainedPool, Launches, Outlook, RejectionGroup, Stay};
use crate::plan::render::{self, rest};
use crate::plan::render_rejections;
use crate::scheduling::pool_availability::{
    LimitOwner, PoolAvailability, RemainingLimit, RequirementEffect,
};
use crate::scheduling::rejection::{UnavailableSummary, part, shown};

/// Items listed before the rest is counted.
const TOLD: usize = 10;

/// Labels, limits and zones that are listed.
const LISTED: usize = 50;

impl LimitOwner {
    fn as_str(&self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Cluster => "cluster",
            Self::Fleet => "fleet",
            Self::Reservation(_) => "reservation",
        }
    }
}

impl RemainingLimit {
    fn name(&self) -> &str {
        self.resource.as_deref().unwrap_or("nodes")
    }

    /// Returns the use, including other pools that share the limit.
    fn used(&self) -> i64 {
        self.most.saturating_sub(self.left)
    }

    fn json(&self) -> Value {
        let name = self.name();
        let [used, left] = [self.used(), self.left].map(|quantity| match self.closed {
            Some(_) => Value::Null,
            None => render_rejections::amount(name, quantity),
        });
        let mut value = json!({
            "of": self.of.as_str(),
            "resource": part(name),
            "limit": render_rejections::amount(name, self.most),
            "used": used,
            "left": left,
            "closed": self.closed.as_ref().map(part),
        });
        if let LimitOwner::Reservation(id) = &self.of {
            value["reservation"] = json!(part(id));
        }
        value
    }

    fn text(&self) -> String {
        let whose = match &self.of {
            LimitOwner::Pool => String::new(),
            LimitOwner::Reservation(id) => format!(" of reservation {}", part(id)),
            other => format!(" of the {}", other.as_str()),
        };
        let name = self.name();
        let most = shown(name, self.most);
        let head = format!("{} limit {most}{whose}", part(name));
        if let Some(closed) = &self.closed {
            return format!("{head}: {}", part(closed));
        }
        let used = shown(name, self.used());
        match self.left {
            ..0 => format!("{head} is exceeded: {used} in use"),
            left => format!("{head}: {used} in use, {} left", shown(name, left)),
        }
    }
}

fn offering(key: &OfferingKey, price: Price) -> Value {
    let mut value = json!({
        "instance_type": key.instance_type.as_str(),
        "zone": key.zone.as_str(),
        "capacity_type": key.capacity_type.as_str(),
        "usd_per_h": render::round(price.usd_per_h()),
    });
    if let Some(id) = &key.reservation {
        value["reservation"] = json!(id.as_str());
    }
    value
}

fn range_json(range: &PoolAvailability) -> Value {
    let requirements = range.asked.iter().take(LISTED).map(|effect| {
        let (label, wanted) = (part(&effect.key), part(&effect.wanted));
        json!({ "label": label, "wanted": wanted, "types": effect.types })
    });
    let zones = range.zones.iter().take(LISTED);
    let zones = zones.map(|(zone, count)| (part(zone), json!(count)));
    let ways = range.capacity_types.iter();
    let ways = ways.map(|(way, count)| (way.as_str().to_owned(), json!(count)));
    let cheapest = range.cheapest.iter();
    let cheapest = cheapest.map(|(key, price)| offering(key, *price));
    json!({
        "catalog_types": range.catalog,
        "requirements": requirements.collect::<Vec<_>>(),
        "suited_types": range.suited,
        "crowded_types": range.crowded,
        "types": range.types,
        "offerings": range.offerings(),
        "zones": zones.collect::<Map<_, _>>(),
        "capacity_types": ways.collect::<Map<_, _>>(),
        "cheapest": cheapest.collect::<Vec<_>>(),
        "unavailable_offerings": range.held.as_ref().map(|held| json!({
            "offerings": held.offerings,
            "first": part(&held.first),
            "until": held.until.map(|at| at.to_string()),
            "unregistered": held.unregistered,
        })),
        "stopped_by": range.barren.as_ref().map(render_rejections::json),
    })
}

fn launches_json(launches: &Launches) -> Value {
    let mut value = offering(&launches.first, launches.price);
    value["nodes"] = json!(launches.nodes);
    value["pods"] = json!(launches.pods);
    value["virtual_pods"] = json!(launches.virtual_pods);
    value
}

fn stopped_json(group: &RejectionGroup) -> Value {
    json!({
        "code": group.why.code.as_str(),
        "pods": group.pods,
        "first": part(&group.first),
        "text": group.why.text(),
    })
}

fn stay_json(stay: &Stay) -> Value {
    json!({
        "verdict": stay.first.verdict.code(),
        "nodes": stay.nodes,
        "first": part(&stay.first.node),
        "text": part(&stay.first.verdict),
    })
}

impl ExplainedPool<'_> {
    /// Renders one JSON object.
    pub fn json(&self) -> Value {
        let nodes = &self.holding.nodes;
        let pause = self.pause.as_ref().map(|(scope, pause)| {
            json!({
                "of": scope.as_str(),
                "until": pause.until.map(|at| at.to_string()),
                "reason": part(&pause.reason),
            })
        });
        let short = self.short.as_ref().map(|shortfall| {
            let reasons = shortfall.reasons.iter().map(render_rejections::json);
            json!({ "missing": shortfall.missing, "reasons": reasons.collect::<Vec<_>>() })
        });
        let outlooks = self.outlooks.iter().map(|(reason, outlook)| {
            json!({
                "reason": reason.as_str(),
                "leave": outlook.leave,
                "stay": outlook.stay.iter().map(stay_json).collect::<Vec<_>>(),
            })
        });
        let limits = self.range.limits.iter().take(LISTED);
        json!({
            "format_version": render::FORMAT_VERSION,
            "pool": part(&self.pool.name),
            "weight": self.pool.weight,
            "node_class": self.pool.node_class.as_ref().map(part),
            "replicas": self.pool.replicas,
            "paused": pause,
            "nodes": {
                "ready": nodes.ready,
                "unready": nodes.unready,
                "starting": nodes.starting,
                "leaving": nodes.leaving,
            },
            "usd_per_h": render::round(self.holding.cost.usd_per_h()),
            "limits": limits.map(RemainingLimit::json).collect::<Vec<_>>(),
            "range": range_json(&self.range),
            "launches": self.launches.iter().take(TOLD).map(launches_json).collect::<Vec<_>>(),
            "launched": {
                "nodes": self.launched(|launches| launches.nodes),
                "pods": self.launched(|launches| launches.pods),
                "usd_per_h": render::round(self.launched_usd()),
            },
            "short": short,
            "unplaced": self.unplaced.iter().map(stopped_json).collect::<Vec<_>>(),
            "candidates": self.candidates,
            "verdicts": outlooks.collect::<Vec<_>>(),
        })
    }

    fn launched(&self, of: impl Fn(&Launches) -> usize) -> usize {
        self.launches.iter().map(of).sum()
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "nodes are few enough to be exact"
    )]
    fn launched_usd(&self) -> f64 {
        let all = self.launches.iter();
        // The sum of an empty iterator would be -0.0.
        all.fold(0.0, |sum, launches| {
            sum + launches.price.usd_per_h() * launches.nodes as f64
        })
    }

    /// Renders text.
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.head(&mut out);
        range_text(&mut out, &self.range);
        self.now(&mut out);
        self.nodes(&mut out);
        out
    }

    fn head(&self, out: &mut String) {
        let pool = self.pool;
        let class = pool.node_class.as_ref();
        let class = class.map_or(String::new(), |class| {
            format!(", node class {}", part(class))
        });
        // Writing to a String cannot fail.
        let weight = match pool.replicas {
            // A static pool has none.
            Some(_) => String::new(),
            None => format!(", weight {}", pool.weight),
        };
        let _ = writeln!(out, "Pool {}{weight}{class}", part(&pool.name));
        if let Some(replicas) = pool.replicas {
            let _ = writeln!(
                out,
                "  static: {}, regardless of pods",
                many(replicas, "node")
            );
        }
        let nodes = &self.holding.nodes;
        let _ = writeln!(
            out,
            "  {}: {} ready, {} unready, {} starting, {} terminating; {:.4} $/h",
            many(nodes.total(), "node"),
            nodes.ready,
            nodes.unready,
            nodes.starting,
            nodes.leaving,
            self.holding.cost.usd_per_h()
        );
        for limit in self.range.limits.iter().take(LISTED) {
            let _ = writeln!(out, "  {}", limit.text());
        }
        rest(out, "  ", self.range.limits.len(), LISTED);
        if let Some((scope, pause)) = &self.pause {
            let until = pause
                .until
                .map_or("until resumed".to_owned(), |at| format!("until {at}"));
            let (scope, why) = (scope.as_str(), part(&pause.reason));
            let _ = writeln!(out, "  ! the {scope} is paused {until}: {why}");
        }
    }

    /// Renders what would be launched now.
    fn now(&self, out: &mut String) {
        let _ = writeln!(out);
        if self.launches.is_empty() {
            let _ = writeln!(out, "  It would launch no nodes now.");
        } else {
            let _ = writeln!(
                out,
                "  + It would launch {} now, for {}, at {:.4} $/h:",
                many(self.launched(|launches| launches.nodes), "node"),
                many(self.launched(|launches| launches.pods), "pod"),
                self.launched_usd()
            );
        }
        for launch in self.launches.iter().take(TOLD) {
            let price = launch.price.usd_per_h();
            let room = match launch.virtual_pods {
                0 => String::new(),
                count => format!(", and {} of capacity buffers", many(count, "pod")),
            };
            let (first, pods) = (part(&launch.first), many(launch.pods, "pod"));
            let _ = writeln!(
                out,
                "      {} {first}, {price:.4} $/h each: {pods}{room}",
                launch.nodes
            );
        }
        rest(out, "      ", self.launches.len(), TOLD);
        if let Some(shortfall) = &self.short {
            let _ = writeln!(
                out,
                "  ! {} cannot be launched:",
                many(shortfall.missing, "more node")
            );
            for rejection in shortfall.reasons.iter().take(TOLD) {
                let _ = writeln!(out, "      {}", render_rejections::line(rejection));
            }
        }
        let pods: usize = self.unplaced.iter().map(|group| group.pods).sum();
        if pods > 0 {
            let pods = many(pods, "pod");
            let _ = writeln!(out, "  ! {pods} unschedulable, by the reason in this pool:");
        }
        for group in self.unplaced.iter().take(TOLD) {
            let (code, first) = (group.why.code.as_str(), part(&group.first));
            let (pods, text) = (group.pods, group.why.text());
            let _ = writeln!(out, "      {pods} [{code}], such as {first}: {text}");
        }
        let others = self.unplaced.iter().skip(TOLD);
        let others: usize = others.map(|group| group.pods).sum();
        if others > 0 {
            let _ = writeln!(out, "      and {} for other reasons", many(others, "pod"));
        }
    }

    /// Summarizes the candidates for one reason.
    fn becomes(&self, outlook: &Outlook) -> String {
        let stay = outlook.stay();
        let others = self.candidates.saturating_sub(self.leaving + stay);
        let mut all = Vec::new();
        if outlook.leave > 0 {
            all.push(format!("{} would be disrupted now", outlook.leave));
        }
        if stay > 0 {
            all.push(format!("{stay} kept"));
        }
        match (all.is_empty(), others) {
            (true, _) => all.push("none".to_owned()),
            (false, 0) => {}
            (false, others) => all.push(format!("{others} not affected")),
        }
        all.join(", ")
    }

    /// Renders the candidates.
    fn nodes(&self, out: &mut String) {
        if self.candidates == 0 {
            let _ = writeln!(out, "\n  It has no disruption candidates.");
            return;
        }
        let count = many(self.candidates, "node");
        let _ = writeln!(out, "\n  Disruption candidates: {count}");
        let width = self
            .outlooks
            .iter()
            .map(|(reason, _)| reason.as_str().len())
            .max();
        for (reason, outlook) in &self.outlooks {
            let (reason, width) = (reason.as_str(), width.unwrap_or(0));
            let sign = if outlook.leave > 0 { '-' } else { ' ' };
            let _ = writeln!(out, "  {sign} {reason:width$}  {}", self.becomes(outlook));
            for stay in outlook.stay.iter().take(TOLD) {
                let (code, first) = (stay.first.verdict.code(), part(&stay.first.node));
                let (nodes, text) = (stay.nodes, part(&stay.first.verdict));
                let _ = writeln!(out, "      {nodes} [{code}], such as {first}: {text}");
            }
            rest(out, "      ", outlook.stay.len(), TOLD);
        }
    }
}

/// Renders what a pool can launch.
fn range_text(out: &mut String, range: &PoolAvailability) {
    let _ = writeln!(
        out,
        "\n  It can launch {} of {} instance types, {}",
        range.types,
        range.catalog,
        many(range.offerings(), "offering")
    );
    if range.offerings() > 0 {
        let zones = range.zones.iter().take(LISTED);
        let zones = zones.map(|(zone, count)| format!("{} ({count})", part(zone)));
        let zones: Vec<String> = zones.collect();
        let ways = range.capacity_types.iter();
        let ways = ways.map(|(way, count)| format!("{} ({count})", way.as_str()));
        let ways: Vec<String> = ways.collect();
        let _ = writeln!(out, "  zones: {}", zones.join(", "));
        let _ = writeln!(
            out,
            "  capacity types: {}; the cheapest offerings:",
            ways.join(", ")
        );
    }
    for (key, price) in &range.cheapest {
        let _ = writeln!(out, "      {}, {:.4} $/h", part(key), price.usd_per_h());
    }
    if !range.asked.is_empty() {
        let _ = writeln!(
            out,
            "  Instance types that satisfy each of its requirements:"
        );
    }
    let total = range.catalog;
    for RequirementEffect { key, wanted, types } in range.asked.iter().take(LISTED) {
        let sign = if *types == 0 { '!' } else { ' ' };
        let (key, wanted) = (part(key), part(wanted));
        let _ = writeln!(out, "    {sign} {key} {wanted}: {types} of {total} types");
    }
    rest(out, "      ", range.asked.len(), LISTED);
    if !range.asked.is_empty() {
        let sign = if range.suited == 0 { '!' } else { ' ' };
        let _ = writeln!(
            out,
            "    {sign} all requirements: {} of {total} types",
            range.suited
        );
    }
    if range.crowded > 0 {
        let types = many(range.crowded, "type");
        let _ = writeln!(out, "  {types} of these have no room for its DaemonSets");
    }
    if let Some(held) = &range.held {
        let _ = writeln!(out, "  ! {}", held_text(held));
    }
    if let Some(rejection) = &range.barren {
        let (text, code) = (rejection.text(), rejection.code.as_str());
        let _ = writeln!(out, "  ! It cannot launch nodes now: {text} [{code}]");
    }
}

fn held_text(held: &UnavailableSummary) -> String {
    let (count, first) = (many(held.offerings, "offering"), part(&held.first));
    let until = held
        .until
        .map_or(String::new(), |at| format!("; next retry at {at}"));
    let why = match held.unregistered {
        true => "unavailable because nodes of the pool do not register in some zones",
        false => "unavailable after failed launches",
    };
    format!("{why}: {count}, such as {first}{until}")
}

/// Formats a count with a noun.
fn many(count: impl TryInto<usize>, name: &str) -> String {
    match count.try_into().unwrap_or(usize::MAX) {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    }
}
