//! Acquires and renews the Lease of a cluster. The holder is the leader.

// Balance of clusters between hosts.
mod balancer;
// When a leader gives its Lease up, and why.
mod parting;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::coordination::leader_election::{
    ACTS, LeaseObserver, LeaseOwner, LeaseStatus, PartingReason, RETRY, host_of,
};
use crate::host::clock::Moment;
use crate::host::{clock, text};
use crate::kubernetes::client::Connection;
use crate::kubernetes::lease::{self, LeaseState};
use crate::model::id::ClusterName;
use crate::runtime::autoscaler_watch::{AutoscalerWatch, OtherAutoscaler};
use crate::runtime::holder_identity::HolderIdentity;
use crate::telemetry::report_metrics;

pub(crate) use balancer::LeaseBalancer;

/// Timeout of one call. Several calls fit into the time for which a holder may act after a renewal.
const CALL: Duration = Duration::from_secs(4);
/// Delay before a Lease is read again after a write conflict.
const AGAIN: Duration = Duration::from_millis(100);
/// Time for the leader of the first cluster of a group to acquire the other clusters.
const WAITS: Duration = Duration::from_mins(1);

/// A host requests a cluster only if the states of the Leases have not changed for this long. This
/// is also the minimum interval between two requests.
const STEADY: Duration = Duration::from_secs(30);
/// Maximum wait for a Lease holder to begin a new term.
const ANEW: Duration = Duration::from_secs(30);
/// Time for the engine to stop during a handover.
const PARTS: Duration = Duration::from_mins(1);
/// Number of times the interval between two handover requests doubles: up to half an hour.
const ASKS_MAX: u32 = 6;
/// If the requesting host does not acquire the cluster within this time, other hosts may.
const YIELDS: Duration = Duration::from_secs(20);
/// A host hands a requested cluster back if the engine of the cluster makes no decisions within
/// this time.
const FIT: Duration = Duration::from_mins(3);
/// If no other host acquires a returned cluster within this time, this host does.
const RETURNS: Duration = Duration::from_mins(1);

/// Leadership of this host for a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leadership {
    /// Not known yet.
    #[default]
    Unknown,
    /// This host is the leader; the value is its term number.
    Leads(u64),
    /// This host is not the leader, for this reason.
    Follows(String),
    /// This host is not the leader and cannot acquire the Lease, for this reason.
    Fails(String),
}

/// Whether this host is the leader of a cluster.
///
/// ```text
/// Follower ─ acquires the Lease ─► Leader ─ hands the cluster over ─► Parting
///    ▲                               │                                   │
///    │◄── the Lease is not renewed in time, or the engine has stopped ───┤
///    └◄── another autoscaler works, or the API server shows another leader
/// ```
#[derive(Clone, Copy, Debug, Default)]
enum Role {
    /// Another host is the leader, or no host is.
    #[default]
    Follower,
    /// This host is the leader.
    Leader {
        /// When the leadership of this host ends unless it renews the Lease.
        until: Instant,
    },
    /// This host is the leader, and its engine is stopping for a handover.
    Parting {
        /// When the leadership of this host ends unless it renews the Lease.
        until: Instant,
        /// Since when the engine is stopping.
        since: Instant,
        /// Why the cluster is handed over.
        why: PartingReason,
    },
}

impl Role {
    /// Returns when the leadership of this host ends unless it renews the Lease. `None` if this
    /// host is not the leader.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Follower => None,
            Self::Leader { until } | Self::Parting { until, .. } => Some(until),
        }
    }
}

/// The Lease of one cluster, managed by its own task.
pub(crate) struct LeaderElector {
    turn: watch::Receiver<Leadership>,
    /// The last term that has no commands in flight any more.
    rest: watch::Sender<u64>,
    /// Shared state for the other clusters of this host. `None` if no Lease is needed.
    company: Option<(Arc<LeaseBalancer>, ClusterName)>,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl LeaderElector {
    /// Returns an elector without a Lease: observe mode changes nothing.
    pub(crate) fn without_election(connection: &Connection) -> Self {
        connection.fence.close();
        Self {
            turn: watch::channel(Leadership::Leads(0)).1,
            rest: watch::channel(0).0,
            company: None,
            stop: watch::channel(false).0,
            task: None,
        }
    }

    /// Tries to acquire the Lease until stopped, while Karpenter is not active.
    pub(crate) fn start_election(
        cluster: ClusterName,
        connection: Connection,
        identity: &HolderIdentity,
        balancer: Arc<LeaseBalancer>,
    ) -> Self {
        connection.fence.close();
        let (leadership, seen) = watch::channel(Leadership::default());
        let (stop, stopping) = watch::channel(false);
        let (rest, rested) = watch::channel(0);
        let me = identity.holder_name(&cluster);
        let balanced = Some((balancer.clone(), cluster.clone()));
        let task = ElectionTask {
            cluster,
            lookout: AutoscalerWatch::start(&connection),
            connection,
            candidate: LeaseObserver::new(&me),
            me,
            identity: identity.clone(),
            company: balancer,
            began: clock::monotonic_now(),
            known: None,
            role: Role::Follower,
            barred: false,
            waits: None,
            term: 0,
            rested,
            asked: None,
            heard: None,
            handover: None,
            returned: None,
            asks: 0,
            free: None,
            turn: leadership,
        };
        Self {
            turn: seen,
            rest,
            company: balanced,
            stop,
            task: Some(tokio::spawn(task.run_election(stopping))),
        }
    }

    /// The current state.
    pub(crate) fn current_leadership(&self) -> Leadership {
        if self.task.is_some() && self.turn.has_changed().is_err() {
            return Leadership::Fails("the task that held the Lease panicked".to_owned());
        }
        self.turn.borrow().clone()
    }

    /// Waits until the leadership differs from `was`.
    pub(crate) async fn wait_for_change(&mut self, was: &Leadership) {
        let has_ended = self.turn.wait_for(|now| now != was).await.is_err();
        if has_ended && self.current_leadership() == *was {
            // Without an election the state never changes.
            std::future::pending().await
        }
    }

    /// Records whether the engine makes decisions while this host is the leader.
    pub(crate) fn report_health(&self, well: bool) {
        if let Some((balancer, cluster)) = &self.company {
            balancer.report_health(cluster, well);
        }
    }

    /// Records that no commands of this term are in flight.
    pub(crate) fn mark_term_finished(&self, term: u64) {
        self.rest.send_replace(term);
    }

    /// Begins a new term, because the engine of this term has stopped and a new engine starts. If
    /// this host still holds the Lease, it remains the leader. Commands of the earlier term are no
    /// longer sent.
    pub(crate) async fn begin_new_term(&mut self, term: u64) {
        self.mark_term_finished(term);
        if self.task.is_some() {
            drop(timeout(ANEW, self.wait_for_change(&Leadership::Leads(term))).await);
        }
    }

    /// Releases the Lease so that another host can acquire it immediately.
    pub(crate) async fn release_lease(self) {
        self.stop.send_replace(true);
        if let Some(task) = self.task {
            drop(task.await);
        }
    }
}

struct ElectionTask {
    cluster: ClusterName,
    connection: Connection,
    lookout: AutoscalerWatch,
    candidate: LeaseObserver,
    /// The holder name of this host on the Lease.
    me: String,
    identity: HolderIdentity,
    company: Arc<LeaseBalancer>,
    /// Start of the clock by which this task measures the age of a renewal.
    began: Instant,
    /// The state of the Lease as last read or written. `None` if the Lease must be read first.
    known: Option<LeaseState>,
    role: Role,
    /// True if the last write of the Lease failed. Other clusters of its group then do not wait for
    /// this cluster.
    barred: bool,
    /// Since when this cluster, whose Lease is free, has waited for the first cluster of its group.
    waits: Option<Instant>,
    /// The current term of this host, or its last term.
    term: u64,
    /// The last term that has no commands in flight any more.
    rested: watch::Receiver<u64>,
    /// When this host last requested a handover of the cluster.
    asked: Option<Instant>,
    /// Number of handover requests since this host was last the leader.
    asks: u32,
    /// The last handover request read in this term. A request from before the term may be from a
    /// host that no longer exists.
    heard: Option<Option<String>>,
    /// When this host became the leader of a cluster that it had requested. `None` once the engine
    /// of the cluster makes decisions.
    handover: Option<Instant>,
    /// When this host handed the requested cluster back.
    returned: Option<Instant>,
    /// Since when this host has left the Lease free for another host.
    free: Option<Instant>,
    turn: watch::Sender<Leadership>,
}

impl ElectionTask {
    async fn run_election(mut self, mut stopping: watch::Receiver<bool>) {
        let mut changes = self.company.subscribe_changes();
        loop {
            // A cancelled call may still change the Lease. The version of the Lease would then be
            // unknown, and this host could not release it. Calls are therefore not cancelled. Each
            // call has a timeout.
            let wait = self.step_election().await;
            // Ignore changes that this cluster itself has made.
            changes.borrow_and_update();
            tokio::select! {
                () = sleep(wait) => {}
                () = self.lookout.wait_for_change() => {}
                _ = self.rested.changed() => {}
                // A leader need not react to changes of the first Lease of its group.
                _ = changes.changed(), if self.role.until().is_none() => {}
                _ = stopping.wait_for(|stop| *stop) => break,
            }
        }
        self.release_on_stop().await;
    }

    /// Reads the Lease, and acquires or renews it if this host may hold it. Returns the time until
    /// the next step.
    async fn step_election(&mut self) -> Duration {
        if self.role.until().is_some_and(|until| until <= clock::monotonic_now()) {
            self.lose_leadership("the Lease was not renewed in time");
        }
        if self.has_ended() && matches!(self.role, Role::Leader { .. }) {
            self.lose_leadership("the engine stopped");
        }
        match self.lookout.last_state() {
            OtherAutoscaler::Gone => {}
            OtherAutoscaler::Unknown => return RETRY,
            OtherAutoscaler::Unseen(why) => return self.on_call_failed(Failure::Fault(why)),
            OtherAutoscaler::Works(sign) => {
                self.on_karpenter_active(&sign);
                return RETRY;
            }
        }
        let lease = match self.read_lease().await {
            Ok(lease) => lease,
            Err(why) => return self.on_call_failed(why),
        };
        let identity = &self.identity;
        let hold = lease.version.as_ref().map(|_| lease.hold.clone());
        let sight = self
            .candidate
            .observe_lease(hold, self.began.elapsed(), |holder| identity.has_died(holder));
        let status = match sight {
            LeaseOwner::Free if self.barred => LeaseStatus::Unreachable,
            LeaseOwner::Free => LeaseStatus::Free,
            LeaseOwner::Mine => LeaseStatus::Mine,
            LeaseOwner::Theirs(_) => LeaseStatus::Theirs(host_of(&lease.hold.holder).to_owned()),
        };
        let may_hold = self.company.update_status(&self.cluster, status);
        if may_hold || !matches!(sight, LeaseOwner::Free) {
            self.waits = None;
        }
        if !matches!(sight, LeaseOwner::Free) {
            self.free = None;
        }
        if matches!(sight, LeaseOwner::Theirs(_)) {
            (self.handover, self.returned) = (None, None);
        }
        match sight {
            LeaseOwner::Theirs(left) => {
                self.become_follower(&format!("{} is the leader", lease.hold.holder));
                self.request_handover().await;
                left.min(RETRY)
            }
            LeaseOwner::Mine if let Some(why) = self.due_parting_reason() => {
                self.hand_over(lease, why).await
            }
            LeaseOwner::Free if let Some(why) = self.yield_reason(&lease) => {
                self.become_follower(why.as_words());
                RETRY
            }
            // Let the Lease expire, because commands are still in flight.
            LeaseOwner::Mine if !may_hold => {
                self.become_follower("another host leads the clusters that share limits with it");
                RETRY
            }
            LeaseOwner::Free if !may_hold => self.wait_for_group(),
            LeaseOwner::Free | LeaseOwner::Mine => self.renew_lease(lease).await,
        }
    }

    /// Returns the state of the Lease. A holder does not read the Lease, and returns its own last
    /// write.
    async fn read_lease(&mut self) -> Result<LeaseState, Failure> {
        // The time of this leader has expired by the wall clock only: the clock was set, or the
        // host was suspended.
        let leapt = self.connection.fence.has_run_out();
        let before = self.known.take();
        let is_sure = self.role.until().is_some() && !leapt;
        if let Some(lease) = before.as_ref().filter(|_| is_sure) {
            return Ok(lease.clone());
        }
        let known = self.call_with_limit(lease::read_holder(&self.connection.clone())).await?;
        let is_same = before.is_some_and(|lease| {
            lease.transitions == known.transitions && known.hold.holder == self.me
        });
        if leapt && !is_same {
            self.lose_leadership("another host may have been the leader meanwhile");
        }
        Ok(known)
    }

    async fn renew_lease(&mut self, lease: LeaseState) -> Duration {
        let since = Moment::now();
        let (connection, me) = (self.connection.clone(), self.me.clone());
        let holding = lease::write_holder(&connection, &lease, &me, since.wall);
        let result = self.call_with_limit(holding).await;
        self.barred = matches!(&result, Err(Failure::Fault(_)));
        match result {
            Ok(lease) => {
                let request = lease.asked.clone();
                self.known = Some(lease);
                self.become_leader(since);
                let asked = self.accepts_handover(request).then_some(PartingReason::Asked);
                let why = asked.or(self.is_unfit().then_some(PartingReason::Unfit));
                match (self.role, why) {
                    (Role::Leader { until }, Some(why)) => {
                        let words = why.as_words();
                        let cluster = &self.cluster;
                        tracing::info!(%cluster, why = words, "handing over cluster");
                        self.role = Role::Parting { until, since: clock::monotonic_now(), why };
                        self.publish_leadership(Leadership::Follows(words.to_owned()));
                    }
                    // The engine did not stop in time: the handover and this leadership term end.
                    (Role::Parting { since, .. }, _) if since.elapsed() > PARTS => {
                        self.lose_leadership("the engine does not stop");
                    }
                    _ => {}
                }
                RETRY
            }
            Err(Failure::Late) => AGAIN,
            Err(why) => self.on_call_failed(why),
        }
    }

    /// Releases the Lease for the requesting host, or for all other hosts. If this fails, this host
    /// keeps the Lease and may become the leader again.
    async fn hand_over(&mut self, lease: LeaseState, why: PartingReason) -> Duration {
        self.lose_leadership(why.as_words());
        let (connection, now) = (self.connection.clone(), clock::now());
        let let_go = match why {
            PartingReason::Asked => {
                self.call_with_limit(lease::release_for_request(&connection, &lease, now)).await
            }
            PartingReason::Unfit => {
                self.call_with_limit(lease::write_holder(&connection, &lease, "", now)).await
            }
        };
        if let_go.is_err() {
            self.known = Some(lease);
        } else if why == PartingReason::Unfit {
            self.handover = None;
            self.returned = Some(clock::monotonic_now());
            self.company.on_handover_returned();
        }
        RETRY
    }

    /// Requests a handover from the leader, if that host leads too many clusters.
    async fn request_handover(&mut self) {
        // The interval grows with each unanswered request.
        let pause = STEADY.saturating_mul(1 << self.asks.min(ASKS_MAX));
        let is_due = self.asked.is_none_or(|last| last.elapsed() >= pause);
        if !is_due || !self.company.requests_handover_of(&self.cluster) {
            return;
        }
        self.asked = Some(clock::monotonic_now());
        self.asks += 1;
        let connection = self.connection.clone();
        let host = host_of(&self.me);
        let result = self
            .call_with_limit(lease::write_handover_request(&connection, host, clock::now()))
            .await;
        match result {
            Ok(()) => tracing::info!(
                cluster = %self.cluster,
                "requesting handover of cluster from a host with at least two more clusters"
            ),
            Err(Failure::Late) => {}
            Err(Failure::Fault(why)) => {
                tracing::warn!(cluster = %self.cluster, why, "cannot request handover of cluster");
            }
        }
    }

    fn become_leader(&mut self, since: Moment) {
        let until = since.steady + ACTS;
        if matches!(self.role, Role::Follower) {
            self.role = Role::Leader { until };
            // A later term of the same Lease has greater numbers, also on another host.
            let transitions = self.known.as_ref().map_or(0, |lease| lease.transitions);
            let number = self.identity.next_term();
            let mark = format!("term/{}.{transitions}.{number}", self.cluster);
            self.term = self.connection.fence.begin_term(&mark);
            (self.heard, self.free) = (None, None);
            let is_handover = self.handover.is_some()
                || self.asked.is_some_and(|requested_at| requested_at.elapsed() < PARTS + YIELDS);
            self.handover = is_handover.then(clock::monotonic_now);
            self.asks = 0;
            tracing::info!(
                cluster = %self.cluster, lease = %self.connection.lease,
                "became leader"
            );
        }
        match &mut self.role {
            Role::Leader { until: current } | Role::Parting { until: current, .. } => {
                *current = until;
            }
            Role::Follower => {}
        }
        self.connection.fence.open(since, ACTS);
        self.company.update_status(&self.cluster, LeaseStatus::Mine);
        if matches!(self.role, Role::Leader { .. }) {
            self.publish_leadership(Leadership::Leads(self.term));
        }
    }

    /// Makes this host a follower, because another host is the leader or may become the leader.
    fn become_follower(&mut self, why: &str) {
        self.lose_leadership(why);
        let is_new = !matches!(*self.turn.borrow(), Leadership::Follows(_));
        if is_new {
            tracing::info!(cluster = %self.cluster, why, "standing by as follower");
        }
        self.publish_leadership(Leadership::Follows(why.to_owned()));
    }

    /// Ends the leadership of this host, because Karpenter is active. Two autoscalers would undo
    /// each other's actions.
    fn on_karpenter_active(&mut self, sign: &str) {
        self.lose_leadership("Karpenter is active");
        // The other clusters of the group do not wait for this cluster.
        self.company.update_status(&self.cluster, LeaseStatus::Unreachable);
        self.known = None;
        if !matches!(*self.turn.borrow(), Leadership::Follows(_)) {
            tracing::warn!(
                cluster = %self.cluster, sign,
                "Karpenter is active, taking no action; scale its Deployment to 0, or set mode = \
                 \"observe\""
            );
        }
        self.publish_leadership(Leadership::Follows("Karpenter is active".to_owned()));
    }

    fn lose_leadership(&mut self, why: &str) {
        self.connection.fence.close();
        if std::mem::take(&mut self.role).until().is_some() {
            tracing::warn!(cluster = %self.cluster, why, "lost leadership");
        }
    }

    /// Handles a failed read or write of the Lease. A holder remains the leader until its last
    /// renewal expires.
    fn on_call_failed(&mut self, why: Failure) -> Duration {
        if let Some(left) = self.time_left().filter(|left| !left.is_zero()) {
            // Wait at most half of the remaining time, so that another retry fits.
            return (left / 2).clamp(AGAIN, RETRY);
        }
        let why = match why {
            Failure::Late => return AGAIN,
            Failure::Fault(why) => why,
        };
        self.company.update_status(&self.cluster, LeaseStatus::Unreachable);
        self.report_failure(why);
        RETRY
    }

    /// Reports that this host has lost leadership or cannot acquire it.
    fn report_failure(&mut self, why: String) {
        self.lose_leadership(&why);
        let leadership = Leadership::Fails(why);
        if *self.turn.borrow() != leadership
            && let Leadership::Fails(why) = &leadership
        {
            let lease = &self.connection.lease;
            tracing::error!(
                cluster = %self.cluster, %lease, why,
                "cannot acquire Lease, taking no action"
            );
        }
        self.publish_leadership(leadership);
    }

    fn publish_leadership(&self, leadership: Leadership) {
        let leads = matches!(leadership, Leadership::Leads(_));
        report_metrics::set_leader(&self.cluster, &self.connection.lease, leads);
        self.turn.send_if_modified(|current| {
            let has_changed = *current != leadership;
            *current = leadership;
            has_changed
        });
    }

    /// Releases the Lease when the election stops. No commands of this host are in flight, so
    /// another host may become the leader immediately.
    async fn release_on_stop(&mut self) {
        let held = self.known.take().filter(|it| it.hold.holder == self.me);
        self.connection.fence.close();
        self.role = Role::Follower;
        report_metrics::set_leader(&self.cluster, &self.connection.lease, false);
        // The other clusters of the group must not rely on the Lease of this cluster.
        self.company.update_status(&self.cluster, LeaseStatus::Unknown);
        let Some(held) = held else {
            return;
        };
        let connection = self.connection.clone();
        // If this fails, the Lease expires.
        drop(self.call_with_limit(lease::write_holder(&connection, &held, "", clock::now())).await);
    }

    /// Returns how long this host remains the leader without a renewal of the Lease.
    fn time_left(&self) -> Option<Duration> {
        self.role.until().map(|until| until.duration_since(clock::monotonic_now()))
    }

    async fn call_with_limit<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        let limit = self.time_left().map_or(CALL, |left| left.min(CALL));
        match timeout(limit, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Failure::Late),
            Ok(Err(error)) => Err(Failure::Fault(text::error_chain(&error))),
            Err(_) => Err(Failure::Fault(format!("no response within {limit:?}"))),
        }
    }
}

/// The host in a handover request. The format is `HOST TIME`.
fn requesting_host(request: &str) -> &str {
    request.split_once(' ').map_or(request, |(host, _)| host)
}

/// Why a call for the Lease failed.
enum Failure {
    /// Another host has written the Lease meanwhile.
    Late,
    Fault(String),
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tokio::sync::watch;
    use tokio::task::JoinSet;
    use tokio::time::sleep;
    use tower::{BoxError, service_fn};

    use super::{LeaderElector, Leadership, LeaseBalancer};
    use crate::host::clock::{self, Moment};
    use crate::kubernetes::client::Connection;
    use crate::model::id::ClusterName;
    use crate::runtime::holder_identity::HolderIdentity;

    /// The stored Lease with its version.
    type Stored = Arc<Mutex<(u64, Value)>>;

    /// An API that responds after a second, and reports the number of received writes.
    fn slow(stored: &Stored, reached: &watch::Sender<u32>) -> Connection {
        let (stored, reached) = (stored.clone(), reached.clone());
        let answer = move |request: Request<Body>| {
            let (stored, reached) = (stored.clone(), reached.clone());
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let writes = parts.method != Method::GET;
                if writes {
                    reached.send_modify(|count| *count += 1);
                }
                sleep(Duration::from_secs(1)).await;
                let mut known = stored.lock().expect("no panic");
                if writes {
                    let body: Value = serde_json::from_slice(&body)?;
                    *known = (known.0 + 1, body["spec"].clone());
                }
                let others = parts.uri.path().ends_with("karpenter-leader-election");
                let (code, text) = match &*known {
                    (version, _) if *version == 0 || others => {
                        let text = json!({"status": "Failure", "reason": "NotFound", "code": 404});
                        (StatusCode::NOT_FOUND, text)
                    }
                    (version, spec) => {
                        let meta = json!({"name": "own", "resourceVersion": version.to_string()});
                        (StatusCode::OK, json!({"metadata": meta, "spec": spec}))
                    }
                };
                let answer = Response::builder().status(code);
                Ok::<_, BoxError>(answer.body(Body::from(text.to_string().into_bytes()))?)
            }
        };
        Connection::from_client(Client::new(service_fn(answer), "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_released_during_a_renewal() {
        let (stored, (reached, mut count)) = (Stored::default(), watch::channel(0));
        let (name, balancer) = (ClusterName::from("own"), Arc::new(LeaseBalancer::default()));
        balancer.configure(false, std::slice::from_ref(&name));
        let connection = slow(&stored, &reached);
        let identity = HolderIdentity::new("host", None);
        let elector = LeaderElector::start_election(name, connection, &identity, balancer);
        let renewed = count.wait_for(|count| *count == 2).await;
        drop(renewed.expect("the Lease is created, and then renewed"));
        elector.release_lease().await;
        let known = stored.lock().expect("no panic");
        assert_eq!(known.1["holderIdentity"], "", "{known:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn resumed_host_begins_a_new_term() {
        let leases = Leases::default();
        let connection = api(&leases, "own");
        let fence = connection.fence.clone();
        let (name, balancer) = (ClusterName::from("own"), Arc::new(LeaseBalancer::default()));
        balancer.configure(false, std::slice::from_ref(&name));
        let elector = LeaderElector::start_election(
            name,
            connection,
            &HolderIdentity::new("host", None),
            balancer,
        );
        let leads = async |term| {
            for _ in 0..60 {
                if elector.current_leadership() == Leadership::Leads(term) {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
            panic!("{:?}, not term {term}", elector.current_leadership());
        };
        leads(1).await;
        // Only the wall clock has advanced.
        let leap = || {
            let hour = Duration::from_hours(1);
            let wall = clock::now() - hour;
            fence.open(Moment { wall, ..Moment::now() }, hour / 2);
        };
        leap();
        sleep(Duration::from_secs(10)).await;
        leads(1).await;
        assert!(fence.is_open(), "only the wall clock was set");
        if let Some(lease) = leases.lock().expect("no panic").get_mut("own") {
            // A different host has led meanwhile and released the Lease.
            lease.0 += 2;
            lease.1["spec"]["holderIdentity"] = json!("");
            lease.1["metadata"]["resourceVersion"] = json!(lease.0.to_string());
        }
        leap();
        leads(2).await;
        assert!(fence.is_open());
        elector.release_lease().await;
    }

    #[tokio::test(start_paused = true)]
    async fn replacement_of_an_ended_engine_begins_a_new_term() {
        let leases = Leases::default();
        let connection = api(&leases, "own");
        let (old, fence) = (connection.fence.of_term(1), connection.fence.clone());
        let (name, balancer) = (ClusterName::from("own"), Arc::new(LeaseBalancer::default()));
        balancer.configure(false, std::slice::from_ref(&name));
        let mut elector = LeaderElector::start_election(
            name,
            connection,
            &HolderIdentity::new("host", None),
            balancer,
        );
        let leads = elector.turn.wait_for(|turn| *turn == Leadership::Leads(1)).await;
        drop(leads.expect("the elector leads"));
        assert!(old.is_open());
        elector.begin_new_term(1).await;
        assert_eq!(elector.current_leadership(), Leadership::Leads(2));
        assert!(fence.is_open() && !old.is_open());
        sleep(Duration::from_mins(1)).await;
        assert_eq!(elector.current_leadership(), Leadership::Leads(2), "one new term is enough");
        elector.release_lease().await;
    }

    /// The Leases of an API, by name: versions and objects.
    type Leases = Arc<Mutex<BTreeMap<String, (u64, Value)>>>;

    fn merge(target: &mut Value, patch: &Value) {
        let (Some(fields), true) = (patch.as_object(), target.is_object()) else {
            return *target = patch.clone();
        };
        for (key, value) in fields {
            match (value, target.as_object_mut()) {
                (Value::Null, Some(fields)) => drop(fields.remove(key)),
                _ => merge(&mut target[key], value),
            }
        }
    }

    /// An API with Leases, and the connection of a host to the Lease with this name.
    fn api(leases: &Leases, name: &str) -> Connection {
        let leases = leases.clone();
        let answer = move |request: Request<Body>| {
            let leases = leases.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let path = parts.uri.path().to_owned();
                let name = match parts.method == Method::POST {
                    true => body["metadata"]["name"].as_str().unwrap_or_default(),
                    false => path.rsplit('/').next().unwrap_or_default(),
                };
                let mut all = leases.lock().expect("no panic");
                let failure = |code, reason| {
                    let text = json!({"status": "Failure", "reason": reason, "code": code});
                    (code, text)
                };
                let known = all.get(name).map_or(0, |lease| lease.0);
                let asked = body["metadata"]["resourceVersion"].as_str();
                let (code, text) = if parts.method == Method::GET && known == 0 {
                    failure(404, "NotFound")
                } else if asked.is_some_and(|version| version != known.to_string()) {
                    failure(409, "Conflict")
                } else {
                    let lease = all.entry(name.to_owned()).or_default();
                    if parts.method != Method::GET {
                        lease.0 += 1;
                        let version = lease.0.to_string();
                        if lease.1.is_null() {
                            lease.1 = json!({});
                        }
                        merge(&mut lease.1, &body);
                        lease.1["metadata"]["resourceVersion"] = json!(version);
                    }
                    (200, lease.1.clone())
                };
                let answer = Response::builder().status(code);
                Ok::<_, BoxError>(answer.body(Body::from(text.to_string().into_bytes()))?)
            }
        };
        let mut connection = Connection::from_client(Client::new(service_fn(answer), "default"));
        connection.lease.name = name.to_owned();
        connection
    }

    /// A host with all clusters, whose engines stop immediately. It runs until it is dropped.
    fn host(leases: &Leases, name: &str, clusters: &[ClusterName], together: bool) -> JoinSet<()> {
        host_with_health(leases, name, clusters, together, true)
    }

    /// A host whose engines are healthy, or never are.
    fn host_with_health(
        leases: &Leases,
        name: &str,
        clusters: &[ClusterName],
        together: bool,
        is_fit: bool,
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let balancer = Arc::new(LeaseBalancer::default());
        balancer.configure(together, clusters);
        let identity = HolderIdentity::new(name, None);
        for cluster in clusters {
            let connection = api(leases, cluster.as_str());
            let mut elector = LeaderElector::start_election(
                cluster.clone(),
                connection,
                &identity,
                balancer.clone(),
            );
            tasks.spawn(async move {
                loop {
                    let turn = elector.current_leadership();
                    let leads = matches!(turn, Leadership::Leads(_));
                    elector.report_health(is_fit || !leads);
                    elector.wait_for_change(&turn).await;
                    if let Leadership::Leads(term) = turn {
                        elector.mark_term_finished(term);
                    }
                }
            });
        }
        tasks
    }

    /// Number of clusters that each host leads, by the first letter of its name.
    fn shares(leases: &Leases) -> BTreeMap<char, usize> {
        let all = leases.lock().expect("no panic");
        let mut shares = BTreeMap::new();
        for (_, lease) in all.values() {
            let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
            *shares.entry(holder.chars().next().unwrap_or('-')).or_default() += 1;
        }
        shares
    }

    #[tokio::test(start_paused = true)]
    async fn clusters_are_balanced_between_hosts_and_then_stay() {
        let clusters = ["1", "2", "3", "4", "5"].map(ClusterName::from);
        let leases = Leases::default();
        let _host_1 = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 5)]));
        let _host_2 = host(&leases, "b", &clusters, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 3), ('b', 2)]));
        let before = handovers(&leases);
        assert_eq!(before, 7, "five acquisitions and two handovers");
        sleep(Duration::from_mins(20)).await;
        assert_eq!(handovers(&leases), before, "the clusters are balanced");
        let _host_3 = host(&leases, "c", &clusters, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 2), ('b', 2), ('c', 1)]));
    }

    /// Number of leader changes of all clusters.
    fn handovers(leases: &Leases) -> u64 {
        let all = leases.lock().expect("no panic");
        let of = |(_, lease): &(u64, Value)| lease["spec"]["leaseTransitions"].as_u64();
        all.values().filter_map(of).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn host_without_progress_hands_its_cluster_back() {
        let clusters = ["1", "2", "3", "4", "5"].map(ClusterName::from);
        let leases = Leases::default();
        let _host_4 = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(1)).await;
        let _host_5 = host_with_health(&leases, "b", &clusters, false, false);
        sleep(Duration::from_mins(2)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 4), ('b', 1)]));
        sleep(Duration::from_mins(3)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 5)]));
        assert_eq!(handovers(&leases), 7);
        sleep(Duration::from_mins(25)).await;
        assert_eq!(handovers(&leases), 7, "no further request so soon");
        sleep(Duration::from_mins(20)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 5)]));
        assert_eq!(handovers(&leases), 9, "one more attempt");
        sleep(Duration::from_mins(40)).await;
        assert_eq!(handovers(&leases), 9, "the next attempt waits for twice as long");
    }

    #[tokio::test(start_paused = true)]
    async fn unhealthy_host_leads_clusters_without_another_leader() {
        let clusters = ["1", "2"].map(ClusterName::from);
        let leases = Leases::default();
        let other = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(1)).await;
        let _unhealthy_host = host_with_health(&leases, "b", &clusters, false, false);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 1), ('b', 1)]));
        drop(other);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('b', 2)]));
        sleep(Duration::from_mins(30)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('b', 2)]));
        assert_eq!(handovers(&leases), 5, "the requested cluster was handed over");
    }

    #[tokio::test(start_paused = true)]
    async fn joint_clusters_and_requests_of_a_dead_host_cause_no_handover() {
        let clusters = ["1", "2", "3"].map(ClusterName::from);
        let leases = Leases::default();
        let _host_6 = host(&leases, "a", &clusters, true);
        let _host_7 = host(&leases, "b", &clusters, true);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(shares(&leases).len(), 1);
        let leases = Leases::default();
        {
            let asked = json!({"metadata": {"annotations": {
                "outrigger.dev/handover-requested-by": "gone 2026-01-01T00:00:00Z",
            }}});
            let mut all = leases.lock().expect("no panic");
            all.extend(clusters.iter().map(|name| (name.to_string(), (1, asked.clone()))));
            for lease in all.values_mut() {
                lease.1["metadata"]["resourceVersion"] = json!("1");
            }
        }
        let _host_8 = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 3)]));
        let all = leases.lock().expect("no panic");
        let once = |(_, lease): &(u64, Value)| lease["spec"]["leaseTransitions"] == 1;
        assert!(all.values().all(once), "{all:?}");
    }
}
