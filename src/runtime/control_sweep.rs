//! Requested sweeps, as the control socket runs them and returns their results.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::engine::event::Event;
use crate::engine::sweep_result::{SweepOutcome, SweptNode, count_outcomes};
use crate::host::clock;
use crate::host::text::bounded_line;
use crate::model::id::PoolName;
use crate::model::sweep::{SweepKind, SweepRequest};
use crate::runtime::cluster_handle::ClusterHandle;

/// Maximum number of nodes in a response.
const NODES_MAX: usize = 1000;

/// Time for the engine to run a sweep. Later, the request is dropped.
pub(crate) const RUN_MAX: Duration = Duration::from_secs(45);

/// Interval of checks for the result.
const LOOK: Duration = Duration::from_millis(100);

/// Source of request ids.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SweepRequestBody {
    /// The name of the cluster.
    pub cluster: String,
    /// The kind of sweep.
    pub sweep: String,
    /// The pool whose nodes are checked. `None` for all pools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// True to change nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a requested sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SweepResponse {
    /// The format version of the response.
    pub format_version: String,
    /// The name of the cluster.
    pub cluster: String,
    /// The kind of sweep.
    pub sweep: String,
    /// The pool whose nodes were checked. `None` for all pools.
    pub pool: Option<String>,
    /// True if nothing was changed.
    pub dry_run: bool,
    /// When the sweep ran.
    pub at: Option<Timestamp>,
    /// Number of nodes found: those disrupted, blocked and observed.
    pub found: usize,
    /// Number of nodes that are disrupted.
    pub disrupted: usize,
    /// Number of nodes that are due but blocked.
    pub blocked: usize,
    /// Number of nodes that are only observed.
    pub observed: usize,
    /// The nodes by name, up to a maximum.
    pub nodes: Vec<SweptNodeBody>,
}

/// A node that a requested sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SweptNodeBody {
    /// Its name.
    pub node: String,
    /// Its pool.
    pub pool: String,
    /// `disrupted`, `blocked` or `observed`.
    pub outcome: String,
    /// Code of the verdict that keeps it, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// When the verdict ends, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl From<&SweptNode> for SweptNodeBody {
    fn from(found: &SweptNode) -> Self {
        let (outcome, verdict) = match &found.outcome {
            SweepOutcome::Disrupted => ("disrupted", None),
            SweepOutcome::Blocked(verdict) => ("blocked", Some(verdict)),
            SweepOutcome::Observed(verdict) => ("observed", verdict.as_ref()),
        };
        Self {
            node: bounded_line(found.node.as_str()),
            pool: bounded_line(found.pool.as_str()),
            outcome: outcome.to_owned(),
            verdict: verdict.map(|verdict| verdict.code().to_owned()),
            text: verdict.map(|verdict| bounded_line(&verdict.to_string())),
            until: verdict.and_then(|verdict| verdict.ends_at()),
        }
    }
}

/// Runs a sweep, or only returns what it would find. Returns the status and a message on failure.
pub(crate) async fn run_sweep(
    cluster: &ClusterHandle,
    body: SweepRequestBody,
    format: &str,
) -> Result<SweepResponse, (StatusCode, String)> {
    let name = &cluster.name;
    let Some(kind) = SweepKind::parse(&body.sweep) else {
        let why = format!("no sweep is named {:?}", bounded_line(&body.sweep));
        return Err((StatusCode::BAD_REQUEST, why));
    };
    let pool = body.pool.as_deref().map(PoolName::from);
    let limit = SignedDuration::try_from(RUN_MAX).unwrap_or_default();
    let until = clock::now().checked_add(limit).unwrap_or(Timestamp::MAX);
    let request = SweepRequest { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), kind, pool, until };
    let (asked, dry_run) = (request.clone(), body.dry_run);
    let checked = cluster.query_engine(move |engine, now| {
        let cluster = &engine.state().cluster;
        let names = cluster.pools.iter().map(|pool| pool.name.as_str());
        if let Some(pool) = asked.pool.as_ref().filter(|pool| cluster.pool(pool.as_str()).is_none())
        {
            let (pool, names) = (bounded_line(pool.as_str()), names.collect::<Vec<_>>().join(", "));
            return Err((StatusCode::NOT_FOUND, format!("no pool {pool:?}; it has {names}")));
        }
        if let Some(why) = engine.sweep_obstacle(now) {
            let why = format!("it makes no decisions now: {}", bounded_line(&why));
            return Err((StatusCode::SERVICE_UNAVAILABLE, why));
        }
        if !dry_run && engine.state().sweeps.conflicts(&asked, now) {
            let why =
                "an earlier request for this kind is in progress, see outrigger status".to_owned();
            return Err((StatusCode::CONFLICT, why));
        }
        let preview = match dry_run {
            true => engine.preview_sweep(&asked, now),
            false => Vec::new(),
        };
        Ok((preview, now))
    });
    let preview = match checked.await {
        Some(checked) => checked.map_err(|(code, why)| (code, format!("cluster {name}: {why}")))?,
        None => return Err(no_engine(cluster)),
    };
    let (nodes, at) = if body.dry_run {
        preview
    } else {
        tracing::info!(cluster = %name, sweep = kind.as_str(), "sweep requested");
        if !cluster.send_event(Event::SweepRequested(request.clone())).await {
            return Err(no_engine(cluster));
        }
        timeout(RUN_MAX, wait_for_run(cluster, &request)).await.ok().flatten().ok_or_else(|| {
            let limit = RUN_MAX.as_secs();
            let why = format!("cluster {name}: the sweep could not run within {limit} s");
            (StatusCode::GATEWAY_TIMEOUT, why)
        })?
    };
    let result = count_outcomes(&nodes);
    Ok(SweepResponse {
        format_version: format.to_owned(),
        cluster: name.to_string(),
        sweep: kind.as_str().to_owned(),
        pool: body.pool.as_deref().map(bounded_line),
        dry_run: body.dry_run,
        at: Some(at),
        found: result.found(),
        disrupted: result.disrupted,
        blocked: result.blocked,
        observed: result.observed,
        nodes: nodes.iter().take(NODES_MAX).map(SweptNodeBody::from).collect(),
    })
}

/// Waits for the result of a requested sweep. `None` if the engine ended.
async fn wait_for_run(
    cluster: &ClusterHandle,
    request: &SweepRequest,
) -> Option<(Vec<SweptNode>, Timestamp)> {
    loop {
        let (kind, id) = (request.kind, request.id);
        let run = cluster.query_engine(move |engine, _| engine.sweep_run(kind, id).cloned());
        if let Some(run) = run.await? {
            return Some((run.nodes, run.at));
        }
        sleep(LOOK).await;
    }
}

/// Explains why no engine runs a cluster here: a different host leads it, or it is not started.
fn no_engine(cluster: &ClusterHandle) -> (StatusCode, String) {
    let name = &cluster.name;
    match cluster.follower_reason() {
        Some(reason) => {
            let why = format!("cluster {name} is not led by this host: {}", bounded_line(&reason));
            (StatusCode::CONFLICT, why)
        }
        None => {
            let why = format!("cluster {name}: no engine runs, see outrigger status");
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
    }
}
