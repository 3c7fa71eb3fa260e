//! State in annotations of a cluster's Lease: pauses, nodes that were disrupted under budgets with
//! a rate, and approved configurations.
//!
//! `outrigger.dev/pause` pauses the cluster, `pause.outrigger.dev/POOL` a pool. The value is a time
//! (RFC 3339) or `always`, a space, and the reason. `outrigger.dev/disrupted-nodes` lists the nodes
//! that were disrupted, and when: `v1`, then `CLAIM SECOND REASON POOL` for each, separated by
//! semicolons. An invalid value blocks whatever it might have blocked. `outrigger.dev/accepted`
//! contains the approved ids. `outrigger.dev/sweeps` has the last sweep of each kind: `v1`, then
//! `KIND SECOND SCHEDULE LAST SINCE` for each, separated by semicolons, and the nodes that it
//! found: their claims, or `*` and the time of its start if it runs. No occurrence up to `SECOND`
//! runs any more. `LAST` is the occurrence of the last sweep, or `new` before the first one, and
//! the schedule is in force since `SINCE`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use thiserror::Error;

use crate::model::id::{ClaimId, PoolName};
use crate::model::labels::Labels;
use crate::model::pool::Reason;
use crate::model::sweep::{SweepKind, SweepRecord, SweepScope};

/// The annotation that pauses the cluster.
pub const PAUSE: &str = "outrigger.dev/pause";
/// Annotation prefix that pauses a pool.
pub const PAUSE_POOL: &str = "pause.outrigger.dev/";
/// The annotation that lists disrupted nodes.
pub const DISRUPTED_NODES: &str = "outrigger.dev/disrupted-nodes";
/// The name of [`DISRUPTED_NODES`] in earlier versions: read and removed, never written.
pub const DISRUPTED_NODES_FORMER: &str = "outrigger.dev/let-go";

/// The annotation with approved ids, separated by spaces: the
/// [`change_id`](crate::model::template_hash::change_id) of a configuration that disrupts many
/// nodes, and ids of other approvals ([`accept_id`](crate::model::template_hash::accept_id)).
pub const ACCEPTED: &str = "outrigger.dev/accepted";

/// The annotation with the last sweep of each kind.
pub const SWEEPS: &str = "outrigger.dev/sweeps";

/// Maximum number of claims of one kind in [`SWEEPS`]. After a restart, nodes beyond it wait for
/// the next sweep.
const SWEPT_CLAIMS_MAX: usize = 250;

/// The word of [`SWEEPS`] for a sweep that has not completed.
const ALL: &str = "*";

/// The word of [`SWEEPS`] for a schedule without a sweep so far.
const NEW: &str = "new";

/// The last sweep of each kind.
pub type SweepRecords = BTreeMap<SweepKind, SweepRecord>;

/// Maximum number of stored ids per kind. The last ones are kept.
const ACCEPTED_MAX: usize = 16;

/// Maximum number of stored nodes. At a hundred bytes each, they fit into the annotation limit of
/// an object (256 KiB).
pub const DISRUPTED_NODES_MAX: usize = 2000;

/// Maximum length of a pause reason, in characters.
pub const REASON_MAX: usize = 256;

/// Maximum number of pauses that are read.
const PAUSES_MAX: usize = 1000;

/// Keyword for a pause without an end.
const ALWAYS: &str = "always";

/// The version of [`DISRUPTED_NODES`].
const VERSION: &str = "v1";

/// The parts of a Lease that are used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnnotatedLease {
    /// Its resource version.
    pub version: String,
    /// Its annotations.
    pub annotations: Labels,
}

/// Reads the ids of [`ACCEPTED`], the last [`ACCEPTED_MAX`] of each kind. Ids of clusters are a
/// separate kind: they remain valid while instances of the earlier cluster run.
fn accepted_ids(text: Option<&str>) -> impl Iterator<Item = &str> {
    let ids: Vec<&str> = text.unwrap_or_default().split_whitespace().collect();
    let (stay, pass): (Vec<&str>, Vec<&str>) =
        ids.into_iter().partition(|id| id.contains("/identity/"));
    [stay, pass].into_iter().flat_map(|ids| {
        let surplus = ids.len().saturating_sub(ACCEPTED_MAX);
        ids.into_iter().skip(surplus)
    })
}

/// The value of [`ACCEPTED`] with one more id. Only the last approved configuration is stored: if a
/// replaced configuration returns, it needs approval again.
pub fn accepted_with(text: Option<&str>, id: &str) -> String {
    // Only the ids of changes contain no slash.
    let others = accepted_ids(text)
        .filter(|accepted| *accepted != id && (accepted.contains('/') || id.contains('/')));
    let all: Vec<&str> = others.chain([id]).collect();
    all.join(" ")
}

/// The annotation that pauses a cluster or a pool.
pub fn pause_key(pool: Option<&PoolName>) -> String {
    pool.map_or(PAUSE.to_owned(), |pool| format!("{PAUSE_POOL}{pool}"))
}

/// A pause of voluntary disruption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ends. `None` means that only `resume` ends it.
    pub until: Option<Timestamp>,
    /// The reason, as given by the user.
    pub reason: String,
}

impl Pause {
    /// Parses an annotation. An invalid value is a pause without an end.
    pub fn parse_annotation(key: &str, text: &str) -> Self {
        let (until, reason) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let until = match until {
            ALWAYS => Some(None),
            time => time.parse().ok().map(Some),
        };
        let reason = reason.trim().chars().take(REASON_MAX).collect();
        match until {
            Some(until) => Self { until, reason },
            None => {
                let start: String = text.chars().take(40).collect();
                Self {
                    until: None,
                    reason: format!(
                        "the Lease annotation {key} does not start with a time: {start:?}"
                    ),
                }
            }
        }
    }

    /// Returns whether the pause is in effect at `now`.
    pub fn is_active(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason.replace(['\n', '\r'], " ");
        match self.until {
            Some(until) => write!(f, "{until} {reason}"),
            None => write!(f, "{ALWAYS} {reason}"),
        }
    }
}

/// A node whose disruption a rate counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisruptionRecord {
    /// Its pool.
    pub pool: PoolName,
    /// The disruption reason.
    pub reason: Reason,
    /// The time, in whole seconds.
    pub at: Timestamp,
}

/// The state of a cluster in its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseAnnotations {
    /// Why the Lease is not known. In this case no node is disrupted voluntarily.
    pub fault: Option<String>,
    /// Version of the Lease. `None` if the Lease does not exist.
    pub version: Option<String>,
    /// Pauses by pool. `None` is the whole cluster.
    pub pauses: BTreeMap<Option<PoolName>, Pause>,
    /// Disrupted nodes, by claim.
    pub let_go: BTreeMap<ClaimId, DisruptionRecord>,
    /// Why the disrupted nodes are not known. In this case all rates count as used up.
    pub garbled: Option<String>,
    /// Approved ids.
    pub accepted: BTreeSet<String>,
    /// The last sweep of each kind. Empty if the annotation is missing or invalid: sweeps then
    /// start from the current time.
    pub sweeps: SweepRecords,
}

impl LeaseAnnotations {
    /// Returns whether two states are equal, ignoring the version of the Lease.
    pub fn has_same_content(&self, other: &Self) -> bool {
        let version = self.version.clone();
        *self == Self { version, ..other.clone() }
    }

    /// Reads the state of a Lease. Empty if the Lease does not exist.
    ///
    /// The running daemon also knows the disrupted nodes: `known` is used if a user deleted the
    /// Lease or the annotation.
    pub fn from_lease(lease: Option<&AnnotatedLease>, known: &Self) -> Self {
        let mut notes = Self::default();
        let Some(lease) = lease else {
            notes.let_go.clone_from(&known.let_go);
            return notes;
        };
        notes.version = Some(lease.version.clone());
        let accepted = lease.annotations.get(ACCEPTED).map(String::as_str);
        notes.accepted = accepted_ids(accepted).map(str::to_owned).collect();
        let sweeps = lease.annotations.get(SWEEPS).map(|text| parse_sweeps(text));
        notes.sweeps = sweeps.unwrap_or_default();
        for (key, text) in &lease.annotations {
            let pool = match key.strip_prefix(PAUSE_POOL) {
                Some(pool) => Some(PoolName::from(pool)),
                None if key == PAUSE => None,
                None => continue,
            };
            if notes.pauses.len() < PAUSES_MAX {
                notes.pauses.insert(pool, Pause::parse_annotation(key, text));
            }
        }
        let disrupted = disrupted_nodes(&lease.annotations).unwrap_or_else(|error| {
            notes.garbled = Some(error.to_string());
            None
        });
        notes.let_go = disrupted.unwrap_or_else(|| known.let_go.clone());
        notes
    }

    /// The pause of a pool at `now` that ends last, and whether it is the pause of the cluster.
    pub fn pause_of(&self, pool: &PoolName, now: Timestamp) -> Option<(bool, &Pause)> {
        let keys = [None, Some(pool.clone())];
        let pauses = keys.iter().filter_map(|key| Some((key.is_none(), self.pauses.get(key)?)));
        pauses
            .filter(|(_, pause)| pause.is_active(now))
            .max_by_key(|(_, pause)| pause.until.unwrap_or(Timestamp::MAX))
    }

    /// The annotation value with further disrupted nodes, and the stored nodes since `from`. `None`
    /// if they exceed the limit.
    pub fn let_go_text(
        &self,
        added: &BTreeMap<ClaimId, DisruptionRecord>,
        from: Timestamp,
    ) -> Option<String> {
        let recent = self.let_go.iter().filter(|(_, record)| record.at > from);
        let all: BTreeMap<&ClaimId, &DisruptionRecord> = recent.chain(added).collect();
        let fits = all.len() <= DISRUPTED_NODES_MAX;
        fits.then(|| {
            VERSION.to_owned()
                + &all
                    .into_iter()
                    .map(|(claim, record)| {
                        let (second, reason) = (record.at.as_second(), record.reason.as_str());
                        format!(";{claim} {second} {reason} {}", record.pool)
                    })
                    .collect::<String>()
        })
    }

    /// Pools that are paused at `now`. `None` is the whole cluster.
    pub fn paused_pools(&self, now: Timestamp) -> BTreeSet<Option<PoolName>> {
        let paused = self.pauses.iter().filter(|(_, pause)| pause.is_active(now));
        paused.map(|(pool, _)| pool.clone()).collect()
    }
}

/// Reads [`DISRUPTED_NODES`] and its former name. If hosts of both versions have written their
/// lists, both are used, and of two records of a claim the later one. `None` if neither annotation
/// exists.
fn disrupted_nodes(annotations: &Labels) -> Result<Option<DisruptedNodes>, DisruptedNodesError> {
    let mut all: Option<DisruptedNodes> = None;
    for name in [DISRUPTED_NODES_FORMER, DISRUPTED_NODES] {
        let Some(text) = annotations.get(name) else {
            continue;
        };
        let all = all.get_or_insert_default();
        for (claim, record) in parse_disrupted_nodes(name, text)? {
            let is_later = all.get(&claim).is_none_or(|previous| previous.at <= record.at);
            if is_later {
                all.insert(claim, record);
            }
        }
    }
    Ok(all)
}

/// The value of [`SWEEPS`].
pub fn sweeps_text(records: &SweepRecords) -> String {
    let mut text = VERSION.to_owned();
    for (kind, record) in records {
        let (kind, second) = (kind.as_str(), record.done_until.as_second());
        let last = record.last.map_or(NEW.to_owned(), |at| at.as_second().to_string());
        let since = record.known_since.as_second();
        text += &format!(";{kind} {second} {} {last} {since}", record.schedule);
        match &record.scope {
            SweepScope::None => {}
            SweepScope::All => text += &format!(" {ALL} {}", record.running_since.as_second()),
            SweepScope::Claims(claims) => {
                let words = claims.iter().filter(|claim| is_word(claim.as_str()));
                let stored = words.take(SWEPT_CLAIMS_MAX);
                text.extend(stored.map(|claim| format!(" {claim}")));
            }
        }
    }
    text
}

/// Returns whether a claim id can be stored in a list. Ids are read from tags.
fn is_word(id: &str) -> bool {
    !id.is_empty() && id != ALL && !id.contains([' ', ';'])
}

/// Reads the value of [`SWEEPS`]. Records that are invalid, or of kinds that this version does not
/// know, are skipped.
fn parse_sweeps(text: &str) -> SweepRecords {
    let mut parts = text.trim_end_matches(';').split(';');
    if parts.next() != Some(VERSION) {
        return SweepRecords::new();
    }
    let record = |part: &str| {
        let mut fields = part.split(' ');
        let kind = SweepKind::parse(fields.next()?)?;
        let second = |text: &str| Timestamp::from_second(text.parse().ok()?).ok();
        let done_until = second(fields.next()?)?;
        let schedule = fields.next()?.to_owned();
        let last = match fields.next()? {
            NEW => None,
            text => Some(second(text)?),
        };
        let known_since = second(fields.next()?)?;
        let claims: Vec<&str> = fields.take(SWEPT_CLAIMS_MAX).collect();
        let (scope, running_since) = match claims.as_slice() {
            [] => (SweepScope::None, done_until),
            [ALL, started] => (SweepScope::All, second(started)?),
            claims => {
                let claims = claims.iter().map(|id| ClaimId::from(*id));
                (SweepScope::Claims(claims.collect()), done_until)
            }
        };
        let record = SweepRecord { done_until, schedule, last, known_since, running_since, scope };
        Some((kind, record))
    };
    parts.filter_map(record).collect()
}

/// The disrupted nodes by claim.
type DisruptedNodes = BTreeMap<ClaimId, DisruptionRecord>;

/// Why an annotation with disrupted nodes is invalid.
#[derive(Debug, Error)]
#[error("the Lease annotation {name} {fault}")]
struct DisruptedNodesError {
    name: &'static str,
    fault: String,
}

/// Reads the value of the annotation `name`.
fn parse_disrupted_nodes(
    name: &'static str,
    text: &str,
) -> Result<DisruptedNodes, DisruptedNodesError> {
    let invalid = |part: &str| {
        let start: String = part.chars().take(40).collect();
        let fault = format!("is invalid at {start:?}");
        DisruptedNodesError { name, fault }
    };
    let mut parts = text.trim_end_matches(';').split(';');
    if parts.next() != Some(VERSION) {
        return Err(invalid(text));
    }
    let mut all = BTreeMap::new();
    for part in parts {
        let fields: Vec<&str> = part.split(' ').collect();
        let &[claim, second, reason, pool] = &fields[..] else {
            return Err(invalid(part));
        };
        let at = second.parse().ok();
        let at = at.and_then(|second| Timestamp::from_second(second).ok());
        let (Some(at), Some(reason)) = (at, Reason::parse(reason)) else {
            return Err(invalid(part));
        };
        let pool = PoolName::from(pool);
        all.insert(ClaimId::from(claim), DisruptionRecord { pool, reason, at });
        if all.len() > DISRUPTED_NODES_MAX {
            let fault = format!("lists more than {DISRUPTED_NODES_MAX} nodes");
            return Err(DisruptedNodesError { name, fault });
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;

    use super::{
        ACCEPTED, AnnotatedLease, DISRUPTED_NODES, DISRUPTED_NODES_FORMER, DISRUPTED_NODES_MAX,
        DisruptionRecord, LeaseAnnotations, PAUSE, PAUSE_POOL, Pause, accepted_with, pause_key,
    };
    use crate::model::id::{ClaimId, PoolName};
    use crate::model::pool::Reason;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn lease(annotations: &[(&str, &str)]) -> AnnotatedLease {
        let pairs = annotations.iter();
        let pairs = pairs.map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        AnnotatedLease { version: "7".into(), annotations: pairs.collect() }
    }

    fn expired_at(second: i64) -> DisruptionRecord {
        DisruptionRecord { pool: "general".into(), reason: Reason::Expired, at: at(second) }
    }

    #[test]
    fn accepted_ids_are_merged_and_forgotten_without_a_lease() {
        let known = LeaseAnnotations::from_lease(
            Some(&lease(&[(ACCEPTED, " 0123 \n")])),
            &LeaseAnnotations::default(),
        );
        assert_eq!(known.accepted, ["0123".to_owned()].into());
        for lacking in [None, Some(&lease(&[]))] {
            assert!(LeaseAnnotations::from_lease(lacking, &known).accepted.is_empty());
        }
        let rows = [
            (None, "0123", "0123"),
            (Some("0123"), "4567", "4567"),
            (Some("0123"), "one/ends/1", "0123 one/ends/1"),
            (Some("0123 one/ends/1"), "4567", "one/ends/1 4567"),
            (Some("one/ends/1 one/ends/2"), "one/ends/1", "one/ends/2 one/ends/1"),
        ];
        for (before, id, expect) in rows {
            assert_eq!(accepted_with(before, id), expect, "{before:?} {id}");
        }
        let many: Vec<String> = (0..40).map(|index| format!("one/ends/{index}")).collect();
        let text = accepted_with(Some(&many.join(" ")), "one/ends/40");
        assert_eq!(text.split(' ').count(), super::ACCEPTED_MAX + 1);
        let read = LeaseAnnotations::from_lease(Some(&lease(&[(ACCEPTED, &text)])), &known);
        assert!(read.accepted.contains("one/ends/40") && read.accepted.len() <= 16);
    }

    #[test]
    fn pause_round_trips_through_its_annotation() {
        let pauses = [
            (Some(at(1_800_000_000)), "a new CNI, see wiki"),
            (None, "until I am back"),
            (None, ""),
        ];
        for (until, reason) in pauses {
            let pause = Pause { until, reason: reason.into() };
            assert_eq!(Pause::parse_annotation(PAUSE, &pause.to_string()), pause);
        }
        let lines = Pause { until: None, reason: "two\nlines".into() };
        assert_eq!(lines.to_string(), "always two lines");
    }

    #[test]
    fn unparsable_pause_has_no_end_and_names_its_annotation() {
        for text in ["", "2026-11-32T00:00:00Z typo", "because", "1800000000 x"] {
            let pause = Pause::parse_annotation(PAUSE, text);
            assert!(pause.is_active(Timestamp::MAX), "{text}");
            assert!(pause.reason.contains(PAUSE), "{}", pause.reason);
        }
        let long = "x".repeat(100_000);
        let pause = Pause::parse_annotation(PAUSE, &format!("always {long}"));
        assert!(pause.reason.len() <= 256);
    }

    #[test]
    fn longer_of_pool_and_cluster_pause_applies() {
        let pool = |name: &str| format!("{PAUSE_POOL}{name}");
        let until = |second: i64| format!("{} why", at(second));
        let given = lease(&[
            (PAUSE, &until(100)),
            (&pool("a"), &until(200)),
            (&pool("b"), "always for good"),
            ("outrigger.dev/other", "x"),
        ]);
        let notes = LeaseAnnotations::from_lease(Some(&given), &LeaseAnnotations::default());
        let rows = [
            ("a", 50, Some((false, Some(at(200))))),
            ("a", 200, None),
            ("b", 300, Some((false, None))),
            ("c", 99, Some((true, Some(at(100))))),
            ("c", 100, None),
        ];
        for (name, second, expect) in rows {
            let name = PoolName::from(name);
            let got = notes.pause_of(&name, at(second));
            let got = got.map(|(whole, pause)| (whole, pause.until));
            assert_eq!(got, expect, "{name} {second}");
        }
        assert_eq!(notes.paused_pools(at(150)).len(), 2);
        let keys = [pause_key(None), pause_key(Some(&"a".into()))];
        assert_eq!(keys, [PAUSE.to_owned(), pool("a")]);
    }

    #[test]
    fn disrupted_nodes_round_trip_and_old_ones_are_dropped() {
        let one = |claim: &str, second| (ClaimId::from(claim), expired_at(second));
        let notes = LeaseAnnotations {
            let_go: BTreeMap::from([one("old", 10), one("young", 90), one("again", 80)]),
            ..LeaseAnnotations::default()
        };
        let more = BTreeMap::from([one("new", 100), one("again", 100)]);
        let text = notes.let_go_text(&more, at(50)).expect("it fits");
        assert_eq!(
            text,
            "v1;again 100 expired general;new 100 expired general;young 90 expired general"
        );
        let back = LeaseAnnotations::from_lease(Some(&lease(&[(DISRUPTED_NODES, &text)])), &notes);
        let expect = [one("again", 100), one("new", 100), one("young", 90)];
        assert_eq!(back.let_go, BTreeMap::from(expect));
        assert_eq!(back.garbled, None);
        let many = (0..=DISRUPTED_NODES_MAX).map(|index| one(&index.to_string(), 100));
        assert_eq!(notes.let_go_text(&many.collect(), at(95)), None);
    }

    #[test]
    fn disrupted_nodes_are_read_from_the_annotation_and_from_its_former_name() {
        let known = LeaseAnnotations::default();
        let former = (DISRUPTED_NODES_FORMER, "v1;a 10 expired general");
        let old = LeaseAnnotations::from_lease(Some(&lease(&[former])), &known);
        assert_eq!(old.let_go.len(), 1);
        let present = (DISRUPTED_NODES, "v1;a 5 empty general;b 10 expired general");
        let both = LeaseAnnotations::from_lease(Some(&lease(&[former, present])), &known);
        assert_eq!(both.let_go.len(), 2);
        assert_eq!(both.let_go[&ClaimId::from("a")].at, at(10), "the later record");
        let bad = lease(&[(DISRUPTED_NODES_FORMER, "nonsense"), present]);
        let garbled = LeaseAnnotations::from_lease(Some(&bad), &known).garbled;
        assert!(garbled.is_some_and(|error| error.contains(DISRUPTED_NODES_FORMER)));
    }

    #[test]
    fn known_disrupted_nodes_are_kept_when_the_lease_lacks_them() {
        let known = LeaseAnnotations {
            let_go: BTreeMap::from([(ClaimId::from("a"), expired_at(10))]),
            ..LeaseAnnotations::default()
        };
        assert_eq!(LeaseAnnotations::from_lease(None, &known).let_go, known.let_go);
        let bare = lease(&[]);
        assert_eq!(LeaseAnnotations::from_lease(Some(&bare), &known).let_go, known.let_go);
        let none = lease(&[(DISRUPTED_NODES, "v1")]);
        assert_eq!(LeaseAnnotations::from_lease(Some(&none), &known).let_go, BTreeMap::new());
        let many: String =
            (0..=DISRUPTED_NODES_MAX).map(|index| format!(";{index} 1 empty p")).collect();
        for text in ["", "v2;a 1 empty p", "v1;a b", "v1;a x empty p", &format!("v1{many}")] {
            let notes =
                LeaseAnnotations::from_lease(Some(&lease(&[(DISRUPTED_NODES, text)])), &known);
            assert_eq!(notes.let_go, known.let_go, "{text:.20}");
            let why = notes.garbled.expect("it does not parse");
            assert!(why.contains(DISRUPTED_NODES) && why.len() < 200, "{why}");
        }
    }
}
