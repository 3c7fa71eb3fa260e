//! Exec providers: failing programs, invalid output lines, and cleanup after termination.

use std::fs;
use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::time::sleep;

use super::{ExecProvider, ProgramLimits};
use crate::engine::command::Command;
use crate::host::clock;
use crate::model::claim::{ClaimOrigin, ClaimRecord};
use crate::model::cluster::{Cluster, Exec};
use crate::model::instance::{CapacityType, OfferingKey};
use crate::model::labels::Labels;
use crate::model::node_class::NodeClass;
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::providers::conformance::providers::reference;
use crate::providers::interface::Provider;

/// Limits short enough for a test. Only the start of the program takes real time.
fn limits() -> ProgramLimits {
    ProgramLimits {
        call_timeout: Duration::from_secs(4),
        hello_timeout: Duration::from_secs(5),
        restart_delays: (Duration::from_millis(50), Duration::from_millis(200)),
        min_successful_run: Duration::from_secs(60),
        exit_timeout: Duration::from_millis(500),
        max_unanswered: 2,
        max_invalid_lines: 5,
        max_line_bytes: 64 << 10,
        max_in_flight: 8,
    }
}

fn cluster() -> Cluster {
    Cluster {
        installation: "here".to_owned(),
        name: "prod".into(),
        node_classes: vec![NodeClass {
            name: "long".into(),
            // More than the capacity of a pipe.
            user_data: "x".repeat(300_000),
            ..NodeClass::default()
        }],
        ..Cluster::default()
    }
}

fn program(exec: &Exec) -> ExecProvider {
    ExecProvider::with_limits(exec, &cluster(), limits())
}

fn launch_of(class: Option<&str>) -> Launch {
    let claim = ClaimRecord {
        id: "c-1".into(),
        installation: "here".to_owned(),
        cluster: "prod".into(),
        origin: ClaimOrigin::default(),
        pool: "general".into(),
        node_class: class.map(Into::into),
        created: Timestamp::UNIX_EPOCH,
        expire_after: None,
        expire_hard_after: None,
        termination_grace_period: None,
        pool_hash: "v1:1".to_owned(),
        node_class_hash: "v1:2".to_owned(),
        startup_taints: Vec::new(),
        reason: "test".to_owned(),
        command_id: "1".to_owned(),
    };
    Launch {
        tags: claim.to_tags(),
        devices: Default::default(),
        overlaid: false,
        relaxed: false,
        varied: false,
        claim,
        offerings: vec![OfferingKey {
            instance_type: "small".into(),
            zone: "a".into(),
            capacity_type: CapacityType::OnDemand,
            reservation: None,
        }],
        labels: Labels::default(),
        taints: Vec::new(),
    }
}

fn launch(class: Option<&str>) -> Command {
    Command::Launch(Box::new(launch_of(class)))
}

/// Number of processes with this string in their command line.
fn processes(text: &str) -> usize {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter(|it| {
        let line = fs::read(it.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    })
    .count()
}

async fn wait_until_no_process_is_left(dir: &Path) {
    let dir = dir.to_str().expect("a readable path");
    for _ in 0..50 {
        if processes(dir) == 0 {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
    panic!("{} processes are left", processes(dir));
}

/// Calls to a failing program return soon with an error that contains `words`. The next run of the
/// program succeeds and is used.
async fn check_faulty(exec: Exec, words: &str, command: &Command, recovers: bool) {
    let mut limits = limits();
    if words.contains("no hello") {
        // Shorter than the call timeout, as in production.
        limits.hello_timeout = Duration::from_secs(1);
    }
    let program = ExecProvider::with_limits(&exec, &cluster(), limits);
    let began = clock::monotonic_now();
    let calls = (0..3).map(|_| program.execute(command.clone()));
    let answers = join_all(calls).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(30), "{exec:?}: {took:?}");
    let mut found = false;
    for answer in &answers {
        let CommandResult::Failed { kind, text } = answer else {
            panic!("{exec:?} responds with {answer:?}");
        };
        assert_eq!(*kind, FailureKind::Unknown, "{exec:?}: {text}");
        found |= text.contains(words);
    }
    assert!(found, "{words:?} in {answers:#?}");
    if recovers {
        let began = clock::monotonic_now();
        while !matches!(program.execute(Command::ListInstances).await, CommandResult::Instances(_))
        {
            let took = began.elapsed();
            assert!(took < Duration::from_secs(30), "{exec:?} does not recover");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faulty_program_fails_calls_in_time_and_is_restarted() {
    let table = [
        ("silent", "no hello within 1s"),
        ("old", "protocol version 0 is not supported"),
        ("exit", "(exit status: 1)"),
        ("hang", "no response within 4s"),
        ("deaf", "no response within 4s"),
        ("die", "(exit status: 3)"),
        ("flood", "5 consecutive invalid lines"),
        ("endless", "5 consecutive invalid lines"),
        ("wrong-id", "no response within 4s"),
        ("nonsense", "invalid response of the program: invalid type"),
    ];
    let checks = table.map(|(fault, words)| async move {
        let dir = TempDir::new().expect("a directory");
        let once = dir.path().join("once");
        let once = once.to_str().expect("a readable path");
        let exec = reference(dir.path(), &["--fault", fault, "--once", once]);
        check_faulty(exec, words, &Command::ListInstances, true).await;
        wait_until_no_process_is_left(dir.path()).await;
    });
    join_all(checks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_start_failure_is_reported() {
    let dir = TempDir::new().expect("a directory");
    let plain = dir.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").expect("written");
    let plain = plain.to_str().expect("a readable path");
    let table = [
        (vec!["/nowhere/program"], "No such file"),
        (vec![plain], "Permission denied"),
        (vec![], "no program set"),
        (vec!["true"], "before the hello"),
        (vec!["cat"], "missing field `answer`"),
    ];
    for (command, words) in table {
        let exec =
            Exec { command: command.into_iter().map(str::to_owned).collect(), ..Exec::default() };
        check_faulty(exec, words, &Command::ListInstances, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn launch_with_an_invalid_response_is_rejected() {
    let table = [
        ("untagged", "does not have the tags of the claim", None),
        ("other", "does not have the tags of the claim", None),
        ("hang-launch", "no response within 4s", None),
        ("deaf", "does not read its stdin", Some("long")),
    ];
    let checks = table.map(|(fault, words, class)| async move {
        let dir = TempDir::new().expect("a directory");
        let exec = reference(dir.path(), &["--fault", fault]);
        check_faulty(exec, words, &launch(class), false).await;
    });
    join_all(checks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_other_than_responses_is_ignored() {
    for fault in ["garbage", "loud"] {
        let dir = TempDir::new().expect("a directory");
        let program = program(&reference(dir.path(), &["--fault", fault]));
        // More lines than are ignored in a row.
        for _ in 0..10 {
            let answer = program.execute(Command::ListInstances).await;
            assert_eq!(answer, CommandResult::Instances(Vec::new()), "{fault}");
        }
        let answer = program.execute(launch(None)).await;
        assert!(matches!(answer, CommandResult::Launched(_)), "{fault}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn launch_interrupted_by_program_exit_is_done_once() {
    let dir = TempDir::new().expect("a directory");
    let once = dir.path().join("once");
    let once = once.to_str().expect("a readable path");
    let program = program(&reference(dir.path(), &["--fault", "die-launch", "--once", once]));
    let mut failures = 0;
    let launched = loop {
        match program.execute(launch(None)).await {
            CommandResult::Launched(instance) => break instance,
            CommandResult::Failed { kind, .. } => assert_eq!(kind, FailureKind::Unknown),
            other => panic!("{other:?}"),
        }
        failures += 1;
        assert!(failures < 200, "the program does not recover");
        sleep(Duration::from_millis(20)).await;
    };
    assert!(failures > 0, "the program did not exit");
    let answer = program.execute(Command::ListInstances).await;
    assert_eq!(answer, CommandResult::Instances(vec![launched]));
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_calls_are_limited() {
    let dir = TempDir::new().expect("a directory");
    let program = program(&reference(dir.path(), &["--fault", "hang"]));
    // The program is started first, because calls that wait for the start fail with it.
    drop(program.execute(Command::ListInstances).await);
    let began = clock::monotonic_now();
    let answers = join_all((0..500).map(|_| program.execute(Command::ListInstances))).await;
    assert!(began.elapsed() < Duration::from_secs(30));
    let throttled = answers
        .iter()
        .filter(|it| {
            let kind = match it {
                CommandResult::Failed { kind, .. } => *kind,
                other => panic!("{other:?}"),
            };
            kind == FailureKind::Throttled
        })
        .count();
    assert!(throttled > 300, "only {throttled} were throttled");
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_program_is_killed_with_its_children() {
    let dir = TempDir::new().expect("a directory");
    let mut exec = reference(dir.path(), &[]);
    let command_line = exec.command.join(" ");
    let dir_name = dir.path().display();
    // The child process keeps the pipes open and receives no signal.
    let sleeper = "python3 -c 'import time; time.sleep(600)'";
    let script = format!("{sleeper} {dir_name} & exec {command_line}");
    exec.command = ["sh", "-c", &script].map(str::to_owned).into();
    let program = program(&exec);
    let answer = program.execute(Command::ListInstances).await;
    assert_eq!(answer, CommandResult::Instances(Vec::new()));
    let dir_name = dir_name.to_string();
    assert!(processes(&dir_name) >= 2, "the program and its child run");
    drop(program);
    wait_until_no_process_is_left(dir.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_receives_only_the_listed_environment_variables() {
    let dir = TempDir::new().expect("a directory");
    let seen = dir.path().join("seen");
    let script = format!("env > {}", seen.display());
    let exec = Exec {
        command: ["sh", "-c", &script].map(str::to_owned).into(),
        environment: vec!["CARGO_MANIFEST_DIR".to_owned(), "NOT_SET".to_owned()],
        ..Exec::default()
    };
    drop(program(&exec).execute(Command::ListInstances).await);
    let text = fs::read_to_string(seen).expect("the program ran");
    // Variables that the shell sets itself.
    let shell_names = ["PWD", "SHLVL", "_", "OLDPWD"];
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split('=').next())
        .filter(|name| !shell_names.contains(name))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["CARGO_MANIFEST_DIR", "HOME", "PATH"]);
}

#[test]
fn documentation_lists_the_program_limits() {
    let text = include_str!("../../../docs/PROVIDERS.md");
    let limits = ProgramLimits::default();
    for line in [
        format!("to `hello` | {} s", limits.hello_timeout.as_secs()),
        format!("response to a request | {} s", limits.call_timeout.as_secs()),
        format!("requests without a response | {} |", limits.max_unanswered),
        format!("length of a line | {} MiB", limits.max_line_bytes >> 20),
        format!("invalid lines | {} |", limits.max_invalid_lines),
        format!("until exit | {} s", limits.exit_timeout.as_secs()),
    ] {
        assert!(text.contains(&line), "{line}");
    }
}
