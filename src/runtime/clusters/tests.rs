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
async fn answers(of: &ClusterHandle) {
    let answered = async {
        while of.query_engine(|engine, _| engine.is_ready()).await.is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), answered).await.expect("it does not answer");
}

#[tokio::test]
async fn an_engine_that_panics_is_begun_anew_and_no_other_notices() {
    let place = tempfile::tempdir().expect("a place");
    let path = place.path().join("kubeconfig");
    fs::write(&path, NOWHERE).expect("it is written");
    let mut drivers = ClusterSet::start();
    let both = vec![cluster("one", &path), cluster("two", &path)];
    let (prepared, broken) = drivers.prepare_each(both, ALL).await;
    let applied = drivers.apply(prepared, broken, FleetLimits::default());
    applied.await.expect("they are driven");
    let two = drivers.cluster_handles().remove(1);
    let asked = drivers.cluster_handles().remove(0);
    // Closures run on the engine's own thread.
    answers(&asked).await;
    let answer = asked.query_engine(|_, _| -> bool { panic!("of a test") }).await;
    assert_eq!(answer, None);
    let ended = drivers.wait_for_failure().await;
    assert_eq!(ended.as_str(), "one");
    drivers.on_engine_failed(&ended).await;
    assert!(drivers.is_broken(&ended));
    let said = drivers.cluster_handles().remove(0).follower_reason().expect("why");
    assert!(said.contains("[engine-ended]"), "{said}");
    drivers.retry_failed().await.expect("it is driven again");
    assert!(drivers.is_whole());
    answers(&drivers.cluster_handles()[0]).await;
    assert!(Arc::ptr_eq(&two, &drivers.cluster_handles()[1]), "it has gone on");
    answers(&two).await;
    drivers.stop().await;
}
