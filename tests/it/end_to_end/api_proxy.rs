//! A cluster whose API is behind a proxy.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::kube_api::{Api, Manner};
use super::{Config, cluster};
use crate::binary::run;

/// A proxy on loopback that accepts one user name and password.
struct Proxy {
    port: u16,
    /// The request lines that it received.
    asked: Arc<Mutex<Vec<String>>>,
}

/// The header value for `out@rigger` and `p@ss`.
const AUTHORIZATION: &str = "basic b3V0QHJpZ2dlcjpwQHNz";

impl Proxy {
    /// Starts it; it runs as long as the test process.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let own = asked.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let asked = own.clone();
                thread::spawn(move || serve(stream, &asked));
            }
        });
        Self { port, asked }
    }

    fn asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.clone()
    }
}

fn serve(mut client: TcpStream, asked: &Mutex<Vec<String>>) -> Option<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < 4096 {
        client.read_exact(&mut byte).ok()?;
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let line = head.lines().next()?.to_owned();
    let target = line.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
    let mut all = asked.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(line);
    drop(all);
    if !head.to_lowercase().contains(&AUTHORIZATION.to_lowercase()) {
        let refused = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        return client.write_all(refused).ok();
    }
    let mut server = TcpStream::connect(target).ok()?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
    thread::spawn(move || {
        drop(io::copy(&mut from, &mut to));
        to.shutdown(Shutdown::Write)
    });
    drop(io::copy(&mut server, &mut client));
    client.shutdown(Shutdown::Write).ok()
}

/// Runs `outrigger plan` for a cluster with this `proxy` block, with a timeout in seconds.
fn plan(api: &Api, proxy: &str, seconds: &str) -> Output {
    let own = cluster("a", api.kubeconfig());
    let own = own.replacen("{\n", &format!("{{\n  proxy {{\n{proxy}  }}\n"), 1);
    let config = Config::new(&own);
    run(&["plan", "--config", config.path(), "--timeout", seconds], "")
}

#[test]
fn api_is_reached_through_the_proxy_unless_no_proxy_matches() {
    let api = Api::start(Manner::Well, Vec::new());
    let proxy = Proxy::start();
    let url = format!("    url = \"http://127.0.0.1:{}\"\n", proxy.port);
    let name = "    username = \"out@rigger\"\n";
    let password = |own: &str| format!("{url}{name}    password = \"{own}\"\n");
    let check = |output: &Output, status: i32| {
        let printed = [&output.stdout[..], &output.stderr[..]].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert_eq!(output.status.code(), Some(status), "{printed}");
        assert!(!printed.contains("p@ss") && !printed.contains("p%40ss"), "{printed}");
        printed
    };
    let direct = format!("{}    no_proxy = [\"127.0.0.0/8\"]\n", password("p@ss"));
    // A plan takes five seconds, and longer while other tests run.
    check(&plan(&api, &direct, "60"), 0);
    assert_eq!(proxy.asked(), Vec::<String>::new());
    check(&plan(&api, &password("p@ss"), "60"), 0);
    let asked = proxy.asked();
    assert!(!asked.is_empty() && asked.iter().all(|own| own.starts_with("CONNECT 127.0.0.1:")));
    check(&plan(&api, &password("wrong"), "10"), 1);
}
