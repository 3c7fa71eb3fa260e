//! Holds a cluster's Lease for as long as it can: who holds it leads.
//! It must not know what a leader does.

mod balancer;

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
use crate::telemetry;

pub(crate) use balancer::LeaseBalancer;

/// Time for one call: several fit into what a holder may act for.
const CALL: Duration = Duration::from_secs(4);
/// After a Lease was written by another at the same moment, it is read again so soon.
const AGAIN: Duration = Duration::from_millis(100);
/// Whoever leads what goes before has this long to take what is led together with it.
const WAITS: Duration = Duration::from_mins(1);

/// Clusters change hosts only where nothing else has changed for so long, and whoever was asked for
/// one has so long to part with it.
const STEADY: Duration = Duration::from_secs(30);
/// A host that has the Lease begins another term within this.
const ANEW: Duration = Duration::from_secs(30);
/// Whoever parts with a cluster has so long to end its engine.
const PARTS: Duration = Duration::from_mins(1);
/// How often the pause between two questions doubles: to half an hour.
const ASKS_MAX: u32 = 6;
/// Where whoever has asked for a cluster does not take it for so long, others do.
const YIELDS: Duration = Duration::from_secs(20);
/// A host gives back what it has asked for, if its engine does not decide for so long.
const FIT: Duration = Duration::from_mins(3);
/// Where nobody else takes what was given back for so long, this host does again.
const RETURNS: Duration = Duration::from_mins(1);

/// Whether this host leads a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Leadership {
    /// Nobody knows yet.
    #[default]
    Unknown,
    /// It does, in this term, as the fence counts them.
    Leads(u64),
    /// It does not: another does, or will, in these words.
    Follows(String),
    /// It does not, and its Lease cannot be had for this reason.
    Fails(String),
}

/// One cluster's Lease, held or tried for by a task of its own.
pub(crate) struct LeaderElector {
    turn: watch::Receiver<Leadership>,
    /// The last term of which nothing is under way any more.
    rest: watch::Sender<u64>,
    /// What is told of it to the others here; none where nobody need hold a Lease.
    company: Option<(Arc<LeaseBalancer>, ClusterName)>,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl LeaderElector {
    /// Nobody need hold a Lease to look at a cluster, and nothing may be changed of it.
    pub(crate) fn observe(connection: &Connection) -> Self {
        connection.fence.close();
        Self {
            turn: watch::channel(Leadership::Leads(0)).1,
            rest: watch::channel(0).0,
            company: None,
            stop: watch::channel(false).0,
            task: None,
        }
    }

    /// Tries for the Lease until it is stopped, and for as long as no Karpenter is at work.
    pub(crate) fn seek(
        cluster: ClusterName,
        connection: Connection,
        identity: &HolderIdentity,
        company: Arc<LeaseBalancer>,
    ) -> Self {
        connection.fence.close();
        let (turn, seen) = watch::channel(Leadership::default());
        let (stop, stopping) = watch::channel(false);
        let (rest, rested) = watch::channel(0);
        let me = identity.holder(&cluster);
        let told = Some((company.clone(), cluster.clone()));
        let seeker = ElectionTask {
            cluster,
            lookout: AutoscalerWatch::start(&connection),
            connection,
            candidate: LeaseObserver::new(&me),
            me,
            identity: identity.clone(),
            company,
            began: clock::monotonic(),
            known: None,
            until: None,
            barred: false,
            waits: None,
            term: 0,
            rested,
            asked: None,
            heard: None,
            parting: None,
            gift: None,
            returned: None,
            asks: 0,
            free: None,
            turn,
        };
        Self {
            turn: seen,
            rest,
            company: told,
            stop,
            task: Some(tokio::spawn(seeker.seek(stopping))),
        }
    }

    /// How it is now.
    pub(crate) fn turn(&self) -> Leadership {
        if self.task.is_some() && self.turn.has_changed().is_err() {
            return Leadership::Fails("whoever held the Lease has panicked".to_owned());
        }
        self.turn.borrow().clone()
    }

    /// Returns when it is otherwise than it was.
    pub(crate) async fn changed(&mut self, was: &Leadership) {
        let gone = self.turn.wait_for(|turn| turn != was).await.is_err();
        if gone && self.turn() == *was {
            // Nobody seeks: it stays as it is.
            std::future::pending().await
        }
    }

    /// Whether its engine decides, while this host leads.
    pub(crate) fn tell_well(&self, well: bool) {
        if let Some((company, cluster)) = &self.company {
            company.tell_well(cluster, well);
        }
    }

    /// Nothing of this term is under way any more.
    pub(crate) fn rest(&self, term: u64) {
        self.rest.send_replace(term);
    }

    /// The engine of this term has ended, and another is to begin: this host leads on in another
    /// term, if it still has the Lease. Nothing of the earlier one is sent any more.
    pub(crate) async fn begin_anew(&mut self, term: u64) {
        self.rest(term);
        if self.task.is_some() {
            drop(timeout(ANEW, self.changed(&Leadership::Leads(term))).await);
        }
    }

    /// Lets go of the Lease, so that another may have it at once.
    pub(crate) async fn release(self) {
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
    /// How it holds the Lease.
    me: String,
    identity: HolderIdentity,
    company: Arc<LeaseBalancer>,
    /// Spans are counted from here.
    began: Instant,
    /// The Lease as it was last read or written; none where it is to be read first.
    known: Option<LeaseState>,
    /// Until when this host leads without a renewal.
    until: Option<Instant>,
    /// Whether it could not be written last time, so that others do not wait for it.
    barred: bool,
    /// Since when it has waited for one that is led first, though nobody has this one.
    waits: Option<Instant>,
    /// The term that goes on, or the last one.
    term: u64,
    /// The last term of which nothing is under way.
    rested: watch::Receiver<u64>,
    /// When this host asked for the cluster last.
    asked: Option<Instant>,
    /// How often it has asked since it led last.
    asks: u32,
    /// Who has asked for it, as it was last read in this term; what stood there before it began
    /// may be from a host that is gone.
    heard: Option<Option<String>>,
    /// Since when its engine ends, so that the Lease can be let go, and why.
    parting: Option<(Instant, PartingReason)>,
    /// Since when this host leads what it had asked for, until it has shown that it is fit to.
    gift: Option<Instant>,
    /// When it gave it back.
    returned: Option<Instant>,
    /// Since when it was seen to be left to another.
    free: Option<Instant>,
    turn: watch::Sender<Leadership>,
}

impl ElectionTask {
    async fn seek(mut self, mut stopping: watch::Receiver<bool>) {
        let mut news = self.company.news();
        loop {
            // What is cut off may be carried out all the same: nothing could be let go then, since
            // nobody would know the version. Each call has a limit.
            let wait = self.step().await;
            // What this one has told itself is no news to it.
            news.borrow_and_update();
            tokio::select! {
                () = sleep(wait) => {}
                () = self.lookout.changed() => {}
                _ = self.rested.changed() => {}
                // What became of a Lease that goes before is no news to who leads already.
                _ = news.changed(), if self.until.is_none() => {}
                _ = stopping.wait_for(|stop| *stop) => break,
            }
        }
        self.let_go().await;
    }

    /// Looks at the Lease, and takes or renews it where it may. Returns how long that holds.
    async fn step(&mut self) -> Duration {
        if self.until.is_some_and(|until| until <= clock::monotonic()) {
            self.lose("it was not renewed in time");
        }
        if self.has_ended() && self.parting.is_none() {
            self.lose("its engine has ended");
        }
        match self.lookout.seen() {
            OtherAutoscaler::Gone => {}
            OtherAutoscaler::Unknown => return RETRY,
            OtherAutoscaler::Unseen(why) => return self.failed(Failure::Fault(why)),
            OtherAutoscaler::Works(sign) => {
                self.give_way(&sign);
                return RETRY;
            }
        }
        let known = match self.read().await {
            Ok(known) => known,
            Err(why) => return self.failed(why),
        };
        let identity = &self.identity;
        let died = |holder: &str| identity.has_died(holder);
        let hold = known.version.as_ref().map(|_| known.hold.clone());
        let sight = self.candidate.see(hold, self.began.elapsed(), died);
        let place = match sight {
            LeaseOwner::Free if self.barred => LeaseStatus::Unreachable,
            LeaseOwner::Free => LeaseStatus::Free,
            LeaseOwner::Mine => LeaseStatus::Mine,
            LeaseOwner::Theirs(_) => LeaseStatus::Theirs(host_of(&known.hold.holder).to_owned()),
        };
        let may_hold = self.company.take(&self.cluster, place);
        if may_hold || !matches!(sight, LeaseOwner::Free) {
            self.waits = None;
        }
        if !matches!(sight, LeaseOwner::Free) {
            self.free = None;
        }
        if matches!(sight, LeaseOwner::Theirs(_)) {
            (self.gift, self.returned) = (None, None);
        }
        match sight {
            LeaseOwner::Theirs(left) => {
                self.follow(&format!("{} leads it", known.hold.holder));
                self.ask().await;
                left.min(RETRY)
            }
            LeaseOwner::Mine if let Some(why) = self.has_rested() => self.part(known, why).await,
            LeaseOwner::Free if let Some(why) = self.yields(&known) => {
                self.follow(why.words());
                RETRY
            }
            // It runs out by itself: what is under way for it is not answered yet.
            LeaseOwner::Mine if !may_hold => {
                self.follow("another host leads what it is led together with");
                RETRY
            }
            LeaseOwner::Free if !may_hold => self.wait(),
            LeaseOwner::Free | LeaseOwner::Mine => self.hold(known).await,
        }
    }

    /// The Lease as it is: a holder knows what it has written itself.
    async fn read(&mut self) -> Result<LeaseState, Failure> {
        // By the time of day alone: it was set, or the host was suspended.
        let leapt = self.connection.fence.has_run_out();
        let before = self.known.take();
        let is_sure = self.until.is_some() && !leapt;
        if let Some(known) = before.as_ref().filter(|_| is_sure) {
            return Ok(known.clone());
        }
        let known = self.call(lease::holder(&self.connection.clone())).await?;
        let is_same = before.is_some_and(|own| {
            own.transitions == known.transitions && known.hold.holder == self.me
        });
        if leapt && !is_same {
            self.lose("another may have led it meanwhile");
        }
        Ok(known)
    }

    /// Nobody has it, and one that goes before has to be led first.
    fn wait(&mut self) -> Duration {
        let since = *self.waits.get_or_insert_with(clock::monotonic);
        if since.elapsed() < WAITS {
            self.follow("it is led together with others");
        } else {
            let why = "nobody leads it: whoever leads what it is led together with has not got it";
            self.fail(why.to_owned());
        }
        RETRY
    }

    async fn hold(&mut self, known: LeaseState) -> Duration {
        let since = Moment::now();
        let (connection, me) = (self.connection.clone(), self.me.clone());
        let held = lease::hold(&connection, &known, &me, since.wall);
        let held = self.call(held).await;
        self.barred = matches!(&held, Err(Failure::Fault(_)));
        match held {
            Ok(held) => {
                let asked = held.asked.clone();
                self.known = Some(held);
                self.lead(since);
                let asked = self.gives(asked).then_some(PartingReason::Asked);
                let why = asked.or(self.is_unfit().then_some(PartingReason::Unfit));
                match (self.parting, why) {
                    (None, Some(why)) => {
                        let words = why.words();
                        tracing::info!(cluster = %self.cluster, why = words, "parting with it");
                        self.parting = Some((clock::monotonic(), why));
                        self.tell(Leadership::Follows(words.to_owned()));
                    }
                    // Whoever was told has not heard it: this host leads it on.
                    (Some((since, _)), _) if since.elapsed() > PARTS => {
                        self.lose("its engine does not end");
                    }
                    _ => {}
                }
                RETRY
            }
            Err(Failure::Late) => AGAIN,
            Err(why) => self.failed(why),
        }
    }

    /// Whether another host has asked for the cluster since the last renewal, and gets it.
    fn gives(&mut self, asked: Option<String>) -> bool {
        let before = self.heard.replace(asked.clone());
        let news = before.is_some_and(|before| before != asked);
        let host = asked.as_deref().map(asker);
        news && host.is_some_and(|host| self.company.gives_to(host))
    }

    /// Whether this host had asked for the cluster and has got nowhere with it, which another may.
    fn is_unfit(&mut self) -> bool {
        let Some(since) = self.gift else { return false };
        let is_unfit = self.company.is_unwell_for(&self.cluster, FIT);
        // It was not unwell for all of that.
        if !is_unfit && self.parting.is_none() && since.elapsed() > 2 * FIT {
            self.gift = None;
            self.company.tell_fit(since);
        }
        is_unfit
    }

    /// Why this host parts with a cluster of which nothing is under way any more. Until then the
    /// Lease is renewed, so that what was begun is answered.
    fn has_rested(&self) -> Option<PartingReason> {
        let (_, why) = self.parting?;
        self.has_ended().then_some(why)
    }

    /// Whether this host leads and the engine of this term has ended.
    fn has_ended(&self) -> bool {
        self.until.is_some() && *self.rested.borrow() >= self.term
    }

    /// Lets go of the Lease: for who has asked, or for everybody else. Where that fails the cluster
    /// is led here again.
    async fn part(&mut self, known: LeaseState, why: PartingReason) -> Duration {
        self.lose(why.words());
        let (connection, now) = (self.connection.clone(), clock::now());
        let let_go = match why {
            PartingReason::Asked => self.call(lease::part(&connection, &known, now)).await,
            PartingReason::Unfit => self.call(lease::hold(&connection, &known, "", now)).await,
        };
        if let_go.is_err() {
            self.known = Some(known);
        } else if why == PartingReason::Unfit {
            self.gift = None;
            self.returned = Some(clock::monotonic());
            self.company.tell_returned();
        }
        RETRY
    }

    /// Why a cluster that nobody leads is left to another host: it was let go for that one, or
    /// because this one was not fit for it.
    fn yields(&mut self, known: &LeaseState) -> Option<PartingReason> {
        if self.returned.is_some_and(|own| own.elapsed() < RETURNS) {
            return Some(PartingReason::Unfit);
        }
        let asked = known
            .asked
            .as_deref()
            .filter(|_| known.hold.holder.is_empty());
        let host = asked.map(asker);
        if host.is_none_or(|host| host == host_of(&self.me)) {
            self.free = None;
            return None;
        }
        let since = self.free.get_or_insert_with(clock::monotonic);
        (since.elapsed() < YIELDS).then_some(PartingReason::Asked)
    }

    /// Asks whoever leads the cluster for it, where that one leads too many for this host's taste.
    async fn ask(&mut self) {
        // Who was asked in vain is asked ever more seldom.
        let pause = STEADY.saturating_mul(1 << self.asks.min(ASKS_MAX));
        let is_due = self.asked.is_none_or(|own| own.elapsed() >= pause);
        if !is_due || !self.company.asks_for(&self.cluster) {
            return;
        }
        self.asked = Some(clock::monotonic());
        self.asks += 1;
        let connection = self.connection.clone();
        let host = host_of(&self.me);
        let asked = self.call(lease::ask(&connection, host, clock::now())).await;
        match asked {
            Ok(()) => tracing::info!(
                cluster = %self.cluster,
                "asking for the cluster: another host leads two more than this one, or more"
            ),
            Err(Failure::Late) => {}
            Err(Failure::Fault(why)) => {
                tracing::warn!(cluster = %self.cluster, why, "the cluster cannot be asked for");
            }
        }
    }

    fn lead(&mut self, since: Moment) {
        if self.until.is_none() {
            // A later term of the same Lease is greater, also on another host.
            let transitions = self.known.as_ref().map_or(0, |own| own.transitions);
            let number = self.identity.next_term();
            let mark = format!("term/{}.{transitions}.{number}", self.cluster);
            self.term = self.connection.fence.begin(&mark);
            (self.heard, self.parting, self.free) = (None, None, None);
            let is_new = |asked: Instant| asked.elapsed() < PARTS + YIELDS;
            let is_gift = self.gift.is_some() || self.asked.is_some_and(is_new);
            self.gift = is_gift.then(clock::monotonic);
            self.asks = 0;
            tracing::info!(
                cluster = %self.cluster, lease = %self.connection.lease,
                "this host leads the cluster"
            );
        }
        self.until = Some(since.steady + ACTS);
        self.connection.fence.open(since, ACTS);
        self.company.take(&self.cluster, LeaseStatus::Mine);
        if self.parting.is_none() {
            self.tell(Leadership::Leads(self.term));
        }
    }

    /// Another host leads, or may.
    fn follow(&mut self, why: &str) {
        self.lose(why);
        let news = !matches!(*self.turn.borrow(), Leadership::Follows(_));
        if news {
            tracing::info!(cluster = %self.cluster, why, "standing by");
        }
        self.tell(Leadership::Follows(why.to_owned()));
    }

    /// Karpenter leads it: what both would do is done twice, and undone.
    fn give_way(&mut self, sign: &str) {
        self.lose("Karpenter is at work");
        // What is led together with it need not wait for it.
        self.company.take(&self.cluster, LeaseStatus::Unreachable);
        self.known = None;
        if !matches!(*self.turn.borrow(), Leadership::Follows(_)) {
            tracing::warn!(
                cluster = %self.cluster, sign,
                "Karpenter is at work, and nothing is done beside it: scale its Deployment to 0, \
                 or write mode = \"observe\""
            );
        }
        self.tell(Leadership::Follows("Karpenter leads it".to_owned()));
    }

    fn lose(&mut self, why: &str) {
        self.connection.fence.close();
        self.parting = None;
        if self.until.take().is_some() {
            tracing::warn!(cluster = %self.cluster, why, "this host leads the cluster no more");
        }
    }

    /// The Lease could not be read or written. Who holds it leads for a while nevertheless.
    fn failed(&mut self, why: Failure) -> Duration {
        let left = self
            .until
            .map(|until| until.duration_since(clock::monotonic()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            // Shorter than half of what is left, so that there is another time.
            return (left / 2).clamp(AGAIN, RETRY);
        }
        let why = match why {
            Failure::Late => return AGAIN,
            Failure::Fault(why) => why,
        };
        self.company.take(&self.cluster, LeaseStatus::Unreachable);
        self.fail(why);
        RETRY
    }

    /// It leads no more, or cannot begin to.
    fn fail(&mut self, why: String) {
        self.lose(&why);
        let turn = Leadership::Fails(why);
        if *self.turn.borrow() != turn
            && let Leadership::Fails(why) = &turn
        {
            let lease = &self.connection.lease;
            tracing::error!(
                cluster = %self.cluster, %lease, why,
                "the Lease cannot be had, and nothing is done without it"
            );
        }
        self.tell(turn);
    }

    fn tell(&self, turn: Leadership) {
        telemetry::leads(&self.cluster, matches!(turn, Leadership::Leads(_)));
        self.turn.send_if_modified(|own| {
            let news = *own != turn;
            *own = turn;
            news
        });
    }

    /// Nothing of this host is under way any more: another may lead at once.
    async fn let_go(&mut self) {
        let known = self.known.take().filter(|own| own.hold.holder == self.me);
        self.connection.fence.close();
        self.until = None;
        telemetry::leads(&self.cluster, false);
        // Whoever is led together with it is not to count on it.
        self.company.take(&self.cluster, LeaseStatus::Unknown);
        let Some(known) = known else {
            return;
        };
        let connection = self.connection.clone();
        // Where that fails the Lease runs out by itself.
        drop(
            self.call(lease::hold(&connection, &known, "", clock::now()))
                .await,
        );
    }

    async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        let left = self
            .until
            .map(|until| until.duration_since(clock::monotonic()));
        let limit = left.map_or(CALL, |left| left.min(CALL));
        match timeout(limit, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Failure::Late),
            Ok(Err(error)) => Err(Failure::Fault(text::chain(&error))),
            Err(_) => Err(Failure::Fault(format!("no answer within {limit:?}"))),
        }
    }
}

/// The host that has asked for a cluster: what stands there is `HOST TIME`.
fn asker(asked: &str) -> &str {
    asked.split_once(' ').map_or(asked, |(host, _)| host)
}

/// Why a call about the Lease came to nothing.
enum Failure {
    /// Somebody else has written it meanwhile.
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

    /// What is written, with its version.
    type Stored = Arc<Mutex<(u64, Value)>>;

    /// An API that takes a second for each answer, and tells how many writes have reached it.
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
        Connection::over(Client::new(service_fn(answer), "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_being_renewed_is_let_go_all_the_same() {
        let (stored, (reached, mut count)) = (Stored::default(), watch::channel(0));
        let (name, company) = (ClusterName::from("own"), Arc::new(LeaseBalancer::default()));
        company.configure(false, std::slice::from_ref(&name));
        let connection = slow(&stored, &reached);
        let identity = HolderIdentity::new("host", None);
        let tenure = LeaderElector::seek(name, connection, &identity, company);
        let renewed = count.wait_for(|count| *count == 2).await;
        drop(renewed.expect("it is made, and then renewed"));
        tenure.release().await;
        let known = stored.lock().expect("no panic");
        assert_eq!(known.1["holderIdentity"], "", "{known:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_was_suspended_begins_a_term_anew() {
        let leases = Leases::default();
        let connection = api(&leases, "own");
        let fence = connection.fence.clone();
        let (name, company) = (ClusterName::from("own"), Arc::new(LeaseBalancer::default()));
        company.configure(false, std::slice::from_ref(&name));
        let tenure = LeaderElector::seek(
            name,
            connection,
            &HolderIdentity::new("host", None),
            company,
        );
        let leads = async |term| {
            for _ in 0..60 {
                if tenure.turn() == Leadership::Leads(term) {
                    return;
                }
                sleep(Duration::from_secs(1)).await;
            }
            panic!("{:?}, not term {term}", tenure.turn());
        };
        leads(1).await;
        // Of the clocks that of the day alone has gone on.
        let leap = || {
            let hour = Duration::from_hours(1);
            let wall = clock::now() - hour;
            fence.open(
                Moment {
                    wall,
                    ..Moment::now()
                },
                hour / 2,
            );
        };
        leap();
        sleep(Duration::from_secs(10)).await;
        leads(1).await;
        assert!(fence.is_open(), "it was only set");
        if let Some(own) = leases.lock().expect("no panic").get_mut("own") {
            // Another has led meanwhile, and has let go.
            own.0 += 2;
            own.1["spec"]["holderIdentity"] = json!("");
            own.1["metadata"]["resourceVersion"] = json!(own.0.to_string());
        }
        leap();
        leads(2).await;
        assert!(fence.is_open());
        tenure.release().await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_engine_that_has_ended_is_followed_by_another_in_another_term() {
        let leases = Leases::default();
        let connection = api(&leases, "own");
        let (old, fence) = (connection.fence.of_term(1), connection.fence.clone());
        let (name, company) = (ClusterName::from("own"), Arc::new(LeaseBalancer::default()));
        company.configure(false, std::slice::from_ref(&name));
        let mut tenure = LeaderElector::seek(
            name,
            connection,
            &HolderIdentity::new("host", None),
            company,
        );
        let leads = tenure
            .turn
            .wait_for(|turn| *turn == Leadership::Leads(1))
            .await;
        drop(leads.expect("it has the Lease"));
        assert!(old.is_open());
        tenure.begin_anew(1).await;
        assert_eq!(tenure.turn(), Leadership::Leads(2));
        assert!(fence.is_open() && !old.is_open());
        sleep(Duration::from_mins(1)).await;
        assert_eq!(tenure.turn(), Leadership::Leads(2), "once is enough");
        tenure.release().await;
    }

    /// The Leases of an API, by name: versions and objects.
    type Leases = Arc<Mutex<BTreeMap<String, (u64, Value)>>>;

    fn merge(own: &mut Value, patch: &Value) {
        let (Some(fields), true) = (patch.as_object(), own.is_object()) else {
            return *own = patch.clone();
        };
        for (key, value) in fields {
            match (value, own.as_object_mut()) {
                (Value::Null, Some(own)) => drop(own.remove(key)),
                _ => merge(&mut own[key], value),
            }
        }
    }

    /// An API with Leases, as one cluster has it: reached by the host for this one of them.
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
                let known = all.get(name).map_or(0, |own| own.0);
                let asked = body["metadata"]["resourceVersion"].as_str();
                let (code, text) = if parts.method == Method::GET && known == 0 {
                    failure(404, "NotFound")
                } else if asked.is_some_and(|own| own != known.to_string()) {
                    failure(409, "Conflict")
                } else {
                    let own = all.entry(name.to_owned()).or_default();
                    if parts.method != Method::GET {
                        own.0 += 1;
                        let version = own.0.to_string();
                        if own.1.is_null() {
                            own.1 = json!({});
                        }
                        merge(&mut own.1, &body);
                        own.1["metadata"]["resourceVersion"] = json!(version);
                    }
                    (200, own.1.clone())
                };
                let answer = Response::builder().status(code);
                Ok::<_, BoxError>(answer.body(Body::from(text.to_string().into_bytes()))?)
            }
        };
        let mut own = Connection::over(Client::new(service_fn(answer), "default"));
        own.lease.name = name.to_owned();
        own
    }

    /// One host with all clusters, whose engines stop at once, until this is dropped.
    fn host(leases: &Leases, name: &str, clusters: &[ClusterName], together: bool) -> JoinSet<()> {
        host_that(leases, name, clusters, together, true)
    }

    /// One whose engines decide, or never do.
    fn host_that(
        leases: &Leases,
        name: &str,
        clusters: &[ClusterName],
        together: bool,
        is_fit: bool,
    ) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let company = Arc::new(LeaseBalancer::default());
        company.configure(together, clusters);
        let identity = HolderIdentity::new(name, None);
        for own in clusters {
            let connection = api(leases, own.as_str());
            let mut tenure =
                LeaderElector::seek(own.clone(), connection, &identity, company.clone());
            tasks.spawn(async move {
                loop {
                    let turn = tenure.turn();
                    let leads = matches!(turn, Leadership::Leads(_));
                    tenure.tell_well(is_fit || !leads);
                    tenure.changed(&turn).await;
                    if let Leadership::Leads(term) = turn {
                        tenure.rest(term);
                    }
                }
            });
        }
        tasks
    }

    /// How many clusters each host leads, by the first letter of its name.
    fn shares(leases: &Leases) -> BTreeMap<char, usize> {
        let all = leases.lock().expect("no panic");
        let mut shares = BTreeMap::new();
        for (_, own) in all.values() {
            let holder = own["spec"]["holderIdentity"].as_str().unwrap_or_default();
            *shares
                .entry(holder.chars().next().unwrap_or('-'))
                .or_default() += 1;
        }
        shares
    }

    #[tokio::test(start_paused = true)]
    async fn clusters_are_shared_between_hosts_and_then_stay() {
        let clusters = ["1", "2", "3", "4", "5"].map(ClusterName::from);
        let leases = Leases::default();
        let _host_1 = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 5)]));
        let _host_2 = host(&leases, "b", &clusters, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 3), ('b', 2)]));
        let before = hands(&leases);
        assert_eq!(before, 7, "each was taken once, and two changed hands");
        sleep(Duration::from_mins(20)).await;
        assert_eq!(hands(&leases), before, "nothing is left to share");
        let _host_3 = host(&leases, "c", &clusters, false);
        sleep(Duration::from_mins(5)).await;
        assert_eq!(
            shares(&leases),
            BTreeMap::from([('a', 2), ('b', 2), ('c', 1)])
        );
    }

    /// How often clusters have changed hands.
    fn hands(leases: &Leases) -> u64 {
        let all = leases.lock().expect("no panic");
        let of = |(_, own): &(u64, Value)| own["spec"]["leaseTransitions"].as_u64();
        all.values().filter_map(of).sum()
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_gives_back_what_it_gets_nowhere_with() {
        let clusters = ["1", "2", "3", "4", "5"].map(ClusterName::from);
        let leases = Leases::default();
        let _host_4 = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(1)).await;
        let _host_5 = host_that(&leases, "b", &clusters, false, false);
        sleep(Duration::from_mins(2)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 4), ('b', 1)]));
        sleep(Duration::from_mins(3)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 5)]));
        assert_eq!(hands(&leases), 7);
        sleep(Duration::from_mins(25)).await;
        assert_eq!(hands(&leases), 7, "it asks for no other so soon");
        sleep(Duration::from_mins(20)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 5)]));
        assert_eq!(hands(&leases), 9, "it has tried once more");
        sleep(Duration::from_mins(40)).await;
        assert_eq!(hands(&leases), 9, "and waits for twice as long now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_is_not_fit_leads_what_nobody_else_does() {
        let clusters = ["1", "2"].map(ClusterName::from);
        let leases = Leases::default();
        let other = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(1)).await;
        let _own = host_that(&leases, "b", &clusters, false, false);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 1), ('b', 1)]));
        drop(other);
        sleep(Duration::from_mins(1)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('b', 2)]));
        sleep(Duration::from_mins(30)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('b', 2)]));
        assert_eq!(hands(&leases), 5, "what it had asked for was to be had");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_led_together_and_what_a_dead_host_asked_for_stays() {
        let clusters = ["1", "2", "3"].map(ClusterName::from);
        let leases = Leases::default();
        let _host_6 = host(&leases, "a", &clusters, true);
        let _host_7 = host(&leases, "b", &clusters, true);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(shares(&leases).len(), 1);
        let leases = Leases::default();
        {
            let asked = json!({"metadata": {"annotations": {
                "outrigger.dev/asked-by": "gone 2026-01-01T00:00:00Z",
            }}});
            let mut all = leases.lock().expect("no panic");
            all.extend(
                clusters
                    .iter()
                    .map(|own| (own.to_string(), (1, asked.clone()))),
            );
            for own in all.values_mut() {
                own.1["metadata"]["resourceVersion"] = json!("1");
            }
        }
        let _host_8 = host(&leases, "a", &clusters, false);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(shares(&leases), BTreeMap::from([('a', 3)]));
        let all = leases.lock().expect("no panic");
        let once = |(_, own): &(u64, Value)| own["spec"]["leaseTransitions"] == 1;
        assert!(all.values().all(once), "{all:?}");
    }
}
