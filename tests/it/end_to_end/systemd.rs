//! Notifications between the service manager and the daemon, and the unit file.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::kube_api::{Api, Manner};
use super::process::{Process, get, within};
use super::{Config, LISTEN, cluster};
use crate::binary::{command, outrigger};

/// The service manager's end of the socket.
struct Manager {
    socket: UnixDatagram,
    dir: TempDir,
}

impl Manager {
    fn new() -> Self {
        let dir = TempDir::new().expect("a directory");
        let socket = UnixDatagram::bind(dir.path().join("notify")).expect("a socket");
        let limit = Some(Duration::from_millis(100));
        socket.set_read_timeout(limit).expect("a limit");
        Self { socket, dir }
    }

    /// Starts the daemon as a service with a watchdog interval of half a second.
    fn start(&self, config: &Config) -> Process {
        let mut command = command(&["run", "--config", config.path()]);
        command
            .stdin(Stdio::null())
            .env("NOTIFY_SOCKET", self.dir.path().join("notify"))
            .env("WATCHDOG_USEC", "500000");
        Process::spawn(command, &self.dir.path().join("log"))
    }

    /// Returns the next notification, if any.
    fn hears(&self) -> Option<String> {
        let mut text = [0; 4096];
        let length = self.socket.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    /// Waits for a notification with this text, and returns all notifications until then.
    fn waits(&self, text: &str, seconds: u32) -> Vec<String> {
        let mut all = Vec::new();
        let found = within(seconds, || {
            all.extend(self.hears());
            all.last().is_some_and(|own| own.contains(text)).then_some(())
        });
        assert!(found.is_some(), "{text:?} in {all:#?}");
        all
    }
}

#[test]
fn daemon_notifies_systemd_of_start_watchdog_reload_and_stop() {
    let api = Api::start(Manner::Well, Vec::new());
    let config = Config::new(&format!("{LISTEN}{}", cluster("a", api.kubeconfig())));
    let manager = Manager::new();
    let mut daemon = manager.start(&config);
    manager.waits("STATUS=clusters: 1 ready", 20);
    manager.waits("READY=1", 5);
    manager.waits("WATCHDOG=1", 5);
    config.write("nonsense {}\n");
    daemon.signal("HUP");
    let messages = manager.waits("RELOADING=1", 5);
    assert!(messages.iter().any(|own| own.contains("MONOTONIC_USEC=")), "{messages:?}");
    manager.waits("READY=1", 5);
    manager.waits("ready; configuration not reloaded: ", 5);
    config.write(&format!("{LISTEN}{}", cluster("a", api.kubeconfig())));
    daemon.signal("HUP");
    manager.waits("READY=1", 5);
    manager.waits("STATUS=clusters: 1 ready\n", 5);
    daemon.signal("TERM");
    manager.waits("STOPPING=1", 5);
    assert_eq!(daemon.ends(10).code(), Some(0));
}

#[test]
fn daemon_without_responding_clusters_is_alive_but_not_ready() {
    let api = Api::start(Manner::Hang, Vec::new());
    let config = Config::new(&format!("{LISTEN}{}", cluster("a", api.kubeconfig())));
    let manager = Manager::new();
    let daemon = manager.start(&config);
    let mut messages = manager.waits("STATUS=clusters: 1 not ready", 20);
    for _ in 0..3 {
        messages.extend(manager.waits("WATCHDOG=1", 5));
    }
    let ready = messages.iter().any(|own| own.contains("READY=1"));
    assert!(!ready, "{messages:?}\n{}", daemon.log());
}

#[test]
fn socket_passed_by_systemd_is_served() {
    let api = Api::start(Manner::Well, Vec::new());
    // The configured address does not exist on this host: the daemon must not bind it.
    let listen = "telemetry { listen = \"192.0.2.1:9464\" }\n";
    let config = Config::new(&format!("{listen}{}", cluster("a", api.kubeconfig())));
    let held = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = held.local_addr().expect("an address").to_string();
    let mut command = Command::new("sh");
    let run = command_line(&["run", "--config", config.path()]);
    let script = "exec 3<&0 0</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    command.args(["-c", script, "sh"]).args(run);
    command.stdin(Stdio::from(OwnedFd::from(held)));
    let log = config.0.path().join("log");
    let mut daemon = Process::spawn(command, &log);
    assert_eq!(daemon.admin(), address);
    assert_eq!(get(&address, "/livez").0, 200);
    daemon.signal("TERM");
    assert_eq!(daemon.ends(10).code(), Some(0));
}

fn command_line(arguments: &[&str]) -> Vec<String> {
    let command = command(arguments);
    let words = [command.get_program()].into_iter().chain(command.get_args());
    words.map(|own| own.to_string_lossy().into_owned()).collect()
}

/// Checks the shipped units with the binary of this test.
#[test]
fn systemd_units_are_valid_and_hardened() {
    let name = "end_to_end::systemd::systemd_units_are_valid_and_hardened";
    let analyze = |arguments: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        let output = command.args(arguments).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Some((output.status.success(), text))
    };
    if analyze(&["--version"]).is_none() {
        println!("SKIP {name}: systemd-analyze");
        return;
    }
    let dir = TempDir::new().expect("a directory");
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
    let read = |path: &str| fs::read_to_string(shipped.join(path)).expect("a unit");
    let installed = |text: String| text.replace("/usr/bin/outrigger", outrigger());
    let place = |path: &str| dir.path().join(path).display().to_string();
    let (service, socket) = (place("outrigger.service"), place("outrigger.socket"));
    fs::write(&socket, read("outrigger.socket")).expect("written");
    let unit = installed(read("outrigger.service"));
    fs::write(&service, &unit).expect("written");
    let (fine, printed) = analyze(&["verify", &service, &socket]).expect("it runs");
    assert!(fine && printed.is_empty(), "{printed}");
    let limit = "--threshold=15";
    let (fine, printed) =
        analyze(&["security", "--offline=yes", limit, &service]).expect("it runs");
    assert!(fine, "{printed}");
    // The check can fail.
    fs::write(&service, unit.replace("CapabilityBoundingSet=\n", "")).expect("written");
    let (fine, _) = analyze(&["security", "--offline=yes", limit, &service]).expect("it runs");
    assert!(!fine, "a daemon with every capability exposes more");
    let beside = dir.path().join("outrigger.service.d");
    fs::create_dir(&beside).expect("a directory");
    fs::write(&service, &unit).expect("written");
    for drop_in in ["addresses.conf", "plugins.conf"] {
        let more = read(&format!("outrigger.service.d/{drop_in}"));
        fs::write(beside.join(drop_in), more).expect("written");
    }
    let (fine, printed) = analyze(&["verify", &service]).expect("it runs");
    assert!(fine && printed.is_empty(), "{printed}");
    fs::write(beside.join("wrong.conf"), "[Service]\nNoSuchThing=yes\n").expect("written");
    let (_, printed) = analyze(&["verify", &service]).expect("it runs");
    assert!(printed.contains("NoSuchThing"), "drop-ins are read: {printed}");
}
