//! Tests of running clusters without an API.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{ALL, ClusterSet};
use crate::model::cluster::{Cluster, Kubeconfig};
use crate::model::fleet::FleetLimits;
use crate::runtime::cluster_handle::ClusterHandle;

/// A kubeconfig for an API endpoint without a server.
const NOWHERE: &str = r#"
clusters: [{name: one, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: one, user: {}}]
contexts: [{name: one, context: {cluster: one, user: one}}]
current-context: one
"#;

fn cluster(name: &str, kubeconfig: &Path) -> Arc<Cluster> {
    Arc::new(Cluster {
        name: name.into(),
        kubeconfig: Some(Kubeconfig { path: kubeconfig.to_owned(), context: None }),
        ..Cluster::default()
    })
}

/// Returns when the engine of a cluster responds.
async fn wait_for_response(of: &ClusterHandle) {
    let answered = async {
        while of.query_engine(|engine, _| engine.is_ready()).await.is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), answered).await.expect("a response of the engine");
}

#[tokio::test]
async fn panicked_engine_is_restarted_without_affecting_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("kubeconfig");
    fs::write(&path, NOWHERE).expect("it is written");
    let mut clusters = ClusterSet::start();
    let both = vec![cluster("one", &path), cluster("two", &path)];
    let (prepared, broken) = clusters.prepare_each(both, ALL).await;
    let applied = clusters.apply(prepared, broken, FleetLimits::default());
    applied.await.expect("the clusters run");
    let two = clusters.cluster_handles().remove(1);
    let one = clusters.cluster_handles().remove(0);
    // Closures run on the engine's own thread.
    wait_for_response(&one).await;
    let answer = one.query_engine(|_, _| -> bool { panic!("of a test") }).await;
    assert_eq!(answer, None);
    let ended = clusters.wait_for_failure().await;
    assert_eq!(ended.as_str(), "one");
    clusters.on_engine_failed(&ended).await;
    assert!(clusters.is_broken(&ended));
    let reason = clusters.cluster_handles().remove(0).follower_reason().expect("a reason");
    assert!(reason.contains("[engine-ended]"), "{reason}");
    clusters.retry_failed().await.expect("the cluster runs again");
    assert!(clusters.is_whole());
    wait_for_response(&clusters.cluster_handles()[0]).await;
    assert!(
        Arc::ptr_eq(&two, &clusters.cluster_handles()[1]),
        "the other cluster was not restarted"
    );
    wait_for_response(&two).await;
    clusters.stop().await;
}
