//! A user-supplied program under the daemon: errors of a failing one, and cleanup after it.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::kube_api::{Api, Manner};
use super::process::{get, within};
use super::{Config, LISTEN};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/reference.py");

/// Returns a managed cluster with this exec program.
fn managed_by(kubeconfig: &Path, command: &[&str]) -> String {
    let (path, command) = (kubeconfig.display(), json!(command));
    format!(
        "{LISTEN}outrigger {{ installation = \"it\" }}\ncluster \"it\" {{\n  mode = \"manage\"\n  \
         kubeconfig {{ path = \"{path}\" }}\n  exec {{ command = {command} }}\n}}\n\
         pool \"it\" {{}}\n"
    )
}

/// Returns the command of the reference program with its state in this directory.
fn reference(dir: &Path, more: &[&str]) -> Vec<String> {
    let types = dir.join("types.json");
    fs::write(&types, "[]").expect("written");
    let text = |path: &Path| path.to_str().expect("a readable path").to_owned();
    let (journal, types) = (text(&dir.join("cloud.jsonl")), text(&types));
    let given = ["python3", REFERENCE, "--state", &journal, "--catalog", &types];
    [&given[..], more].concat().into_iter().map(str::to_owned).collect()
}

fn config(api: &Api, command: &[String]) -> String {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    managed_by(api.kubeconfig(), &command)
}

/// Returns the number of processes with this text in their command line.
fn processes(text: &str) -> usize {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter(|it| {
        let line = fs::read(it.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    })
    .count()
}

fn become_none(text: &str) {
    let none = within(10, || (processes(text) == 0).then_some(()));
    assert!(none.is_some(), "{} processes of {text} remain", processes(text));
}

#[test]
fn failing_exec_program_is_logged_and_the_daemon_stays_alive() {
    let fault = |fault: &'static str| move |dir: &Path| reference(dir, &["--fault", fault]);
    type Command<'a> = &'a dyn Fn(&Path) -> Vec<String>;
    let missing = |_: &Path| vec!["/nowhere/program".to_owned()];
    let table: [(Command<'_>, &str); 4] = [
        (&missing, "start /nowhere/program: No such file"),
        (&fault("exit"), "ends at once"),
        (&fault("die"), "dies at list"),
        (&fault("flood"), "100 consecutive invalid lines"),
    ];
    for (command, words) in table {
        let api = Api::start(Manner::Well, Vec::new());
        let dir = tempfile::TempDir::new().expect("a directory");
        let config = Config::new(&config(&api, &command(dir.path())));
        let mut daemon = config.daemon();
        let admin = daemon.admin();
        daemon.logged("exec program exited", 2);
        daemon.logged(words, 1);
        assert_eq!(get(&admin, "/livez").0, 200);
        assert_eq!(get(&admin, "/readyz").0, 503);
        let metrics = get(&admin, "/metrics").1;
        let counted = "outrigger_exec_ends_total{cluster=\"it\"}";
        assert!(metrics.contains(counted), "{counted} in:\n{metrics}");
        daemon.signal("TERM");
        assert_eq!(daemon.ends(10).code(), Some(0), "{}", daemon.log());
        become_none(dir.path().to_str().expect("a readable path"));
    }
}

#[test]
fn exec_program_with_invalid_lines_is_still_used() {
    let api = Api::start(Manner::Well, Vec::new());
    let dir = tempfile::TempDir::new().expect("a directory");
    let command = reference(dir.path(), &["--fault", "garbage"]);
    let config = Config::new(&config(&api, &command));
    let daemon = config.daemon();
    let admin = daemon.admin();
    let ready = within(20, || (get(&admin, "/readyz").0 == 200).then_some(()));
    assert!(ready.is_some(), "{}", daemon.log());
    let metrics = get(&admin, "/metrics").1;
    let name = "outrigger_exec_invalid_lines_total{cluster=\"it\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(name)?.parse().ok());
    assert!(count.is_some_and(|count: u32| count >= 2), "{metrics}");
}

#[test]
fn exec_program_is_replaced_on_reload_and_ends_with_the_daemon() {
    let api = Api::start(Manner::Well, Vec::new());
    let [one, two] = [(); 2].map(|()| tempfile::TempDir::new().expect("a directory"));
    let name = |dir: &tempfile::TempDir| dir.path().to_str().expect("a readable path").to_owned();
    let own = Config::new(&config(&api, &reference(one.path(), &[])));
    let mut daemon = own.daemon();
    daemon.logged("started exec program", 1);
    // Nothing has changed, and no program is restarted.
    daemon.signal("HUP");
    daemon.logged("reloaded configuration", 1);
    assert_eq!(processes(&name(&one)), 1);
    own.write(&config(&api, &reference(two.path(), &[])));
    daemon.signal("HUP");
    daemon.logged("reloaded configuration", 2);
    daemon.logged("started exec program", 2);
    become_none(&name(&one));
    assert_eq!(processes(&name(&two)), 1);
    // The program also ends with a daemon that was killed.
    daemon.signal("KILL");
    daemon.ends(5);
    become_none(&name(&two));
}
