//! Pausing and resuming a cluster and approving its configuration from the command line.

use std::fs;

use super::kube_api::{Api, Manner, kubeconfig_for};
use super::process::Process;
use super::{Config, LISTEN, cluster};
use crate::binary::run;

/// Returns the exit code and the output of a command.
fn does(config: &Config, words: &[&str]) -> (Option<i32>, String) {
    let place = ["--config", config.path()];
    let output = run(&[words, &place].concat(), "");
    let text = match output.status.success() {
        true => output.stdout,
        false => output.stderr,
    };
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

fn annotation(api: &Api, key: &str) -> Option<String> {
    let found = api.lease()?.get(key).cloned()?;
    found.as_str().map(str::to_owned)
}

const PAUSE: &str = "outrigger.dev/pause";
const ACCEPTED: &str = "outrigger.dev/accepted";

#[test]
fn pause_and_resume_edit_the_lease_annotations() {
    let api = Api::start(Manner::Well, vec![]);
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let why = ["--reason", "new CNI"];
    let (code, text) =
        does(&config, &[&["pause", "a", "--for", "2h", "--dry-run"][..], &why[..]].concat());
    assert_eq!((code, api.lease()), (Some(0), None), "{text}");
    assert!(text.starts_with("cluster a would be paused until 2"), "{text}");
    let (code, text) = does(&config, &[&["pause", "a", "--for", "2h"][..], &why[..]].concat());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("Z: new CNI\n"), "{text}");
    let value = annotation(&api, PAUSE).expect("it is paused");
    assert!(value.starts_with('2') && value.ends_with("Z new CNI"), "{value}");

    let pool = [&["pause", "a", "--pool", "a"][..], &why[..]].concat();
    let (_, text) = does(&config, &pool);
    assert_eq!(text, "pool a of cluster a is paused until it is resumed: new CNI\n");
    let value = annotation(&api, "pause.outrigger.dev/a");
    assert_eq!(value.as_deref(), Some("always new CNI"));

    let (_, text) = does(&config, &["resume", "a", "--dry-run"]);
    assert_eq!(text, "cluster a would no longer be paused\n");
    assert!(annotation(&api, PAUSE).is_some());
    for end in ["is no longer paused", "is not paused"] {
        let (code, text) = does(&config, &["resume", "a"]);
        assert_eq!((code, text), (Some(0), format!("cluster a {end}\n")));
        assert_eq!(annotation(&api, PAUSE), None);
    }
    assert!(annotation(&api, "pause.outrigger.dev/a").is_some());
    // A mistyped pool is an error.
    let (code, text) = does(&config, &["resume", "a", "--pool", "b"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("cluster a has no pool \"b\"; it has a"), "{text}");
    // A pool that is no longer configured may still be paused.
    config.write(&cluster("a", api.kubeconfig()).replace("pool \"a\"", "pool \"c\""));
    let (code, text) = does(&config, &["resume", "a", "--pool", "a"]);
    assert_eq!((code, text.as_str()), (Some(0), "pool a of cluster a is no longer paused\n"));
}

#[test]
fn hanging_exec_plugin_ends_resume_and_release_with_an_error() {
    let api = Api::start(Manner::Well, vec![]);
    let exec = "{exec: {apiVersion: client.authentication.k8s.io/v1, command: sleep, \
                args: [\"90\"], interactiveMode: Never}}";
    fs::write(api.kubeconfig(), kubeconfig_for(1, exec)).expect("written");
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let verbs: [&[&str]; 2] = [&["resume", "a"], &["release", "--cluster", "a"]];
    let running = verbs.map(|verb| {
        let log = config.0.path().join(verb[0]);
        Process::start(&[verb, &["--config", config.path()]].concat(), &log)
    });
    for mut verb in running {
        assert_eq!(verb.ends(60).code(), Some(1));
        let log = verb.log();
        assert!(log.contains("returned no credentials within"), "{log}");
    }
}

#[test]
fn invalid_pause_requests_are_rejected() {
    let api = Api::start(Manner::Well, vec![]);
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let rows: [(&[&str], &str); 6] = [
        (&["pause", "b", "--reason", "x"], "the configuration has no cluster \"b\""),
        (&["pause", "a", "--pool", "b", "--reason", "x"], "has no pool \"b\""),
        (&["pause", "a"], "--reason"),
        (&["pause", "a", "--reason", " "], "the reason must be one line"),
        (&["pause", "a", "--reason", "x", "--for", "soon"], "write it like 2h"),
        (&["pause", "a", "--reason", "x", "--for", "9000h"], "at most 8784h"),
    ];
    for (words, expect) in rows {
        let (code, text) = does(&config, words);
        assert!(code != Some(0) && text.contains(expect), "{words:?}: {text}");
    }
    assert_eq!(api.lease(), None);
    let api = Api::start(Manner::Forbids("outrigger"), vec![]);
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let (code, text) = does(&config, &["pause", "a", "--reason", "x"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("cannot update the Lease of cluster a"), "{text}");
}

#[test]
fn configuration_is_approved_only_by_its_own_id() {
    let api = Api::start(Manner::Well, vec![]);
    let config = Config::new(&cluster("a", api.kubeconfig()));
    let accept = |id: &str, more: &[&str]| {
        let words = [&["reload", "--accept", id][..], more].concat();
        does(&config, &words)
    };
    let (code, text) = accept("0123", &[]);
    assert_eq!((code, api.lease()), (Some(1), None), "{text}");
    let (_, id) = text.trim_end().split_once("it is ").expect("the id");
    let id = id.strip_suffix(" of cluster a").expect("the cluster");
    for (more, written, end) in [
        (&["--dry-run"][..], None, "would be approved"),
        (&[], Some(id), "is approved"),
        (&[], Some(id), "is already approved"),
    ] {
        let (code, text) = accept(id, more);
        let expect = format!("configuration {id} of cluster a {end}\n");
        assert_eq!((code, text), (Some(0), expect));
        assert_eq!(annotation(&api, ACCEPTED).as_deref(), written);
    }
    // Another number of replicas is another configuration.
    let text =
        cluster("a", api.kubeconfig()).replace("pool \"a\" {}", "pool \"a\" { replicas = 3 }");
    config.write(&text);
    let (code, text) = accept(id, &[]);
    assert!(code == Some(1) && text.contains("it is "), "{text}");
}

#[test]
fn daemon_logs_that_it_is_paused() {
    let api = Api::start(Manner::Well, vec![]);
    let config = Config::new(&format!("{LISTEN}{}", cluster("a", api.kubeconfig())));
    does(&config, &["pause", "a", "--reason", "new CNI"]);
    let mut daemon = config.daemon();
    daemon.logged("paused voluntary disruption", 1);
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}
