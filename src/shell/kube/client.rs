//! A connection to one cluster's API, from a kubeconfig: TLS verified, every call limited in time.
//! It must not know what is asked over it.

use std::collections::BTreeMap;
use std::fs;
use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderValue, Request, header};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig as File, KubeconfigError};
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tower::util::MapRequestLayer;

use crate::model::cluster::{Api, Kubeconfig};
use crate::model::proxy::Proxy;
use crate::model::tenure::LeaseName;
use crate::shell::fence::Fence;
use crate::shell::files::{self, FilesError};
use crate::shell::kube::pulse::Pulses;
use crate::shell::limiter::Limiter;

/// Time for a TCP connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Time for a request to be written.
const WRITE: Duration = Duration::from_secs(30);

/// Time to make a client: a plugin named by the kubeconfig may run, for as long as it likes.
const MAKE: Duration = Duration::from_secs(20);

/// Why there is no connection.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    File(#[from] FilesError),
    #[error(
        "use the kubeconfig {}: its plugin did not give credentials within {} s",
        .0.display(),
        MAKE.as_secs()
    )]
    Late(PathBuf),
    #[error("use the kubeconfig {}", .0.display())]
    Panicked(PathBuf, #[source] JoinError),
    #[error("read the kubeconfig {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("use {context} of the kubeconfig {}", path.display())]
    Context {
        path: PathBuf,
        context: String,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("use the API at {0}: {1}")]
    Issued(String, String),
    #[error("make a client of {context} of the kubeconfig {}", path.display())]
    Client {
        path: PathBuf,
        context: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl ConnectError {
    /// The stable name.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::File(_) => "kubeconfig-unreadable",
            Self::Read { .. } => "kubeconfig-invalid",
            Self::Context { .. } => "kubeconfig-context",
            Self::Late(_) => "kubeconfig-late",
            Self::Panicked(..) => "kubeconfig-fault",
            Self::Issued(..) => "endpoint-invalid",
            Self::Client { .. } => "kubeconfig-credentials",
        }
    }

    /// Whether it may be over by itself: what is in files stays as it is.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::File(_) | Self::Read { .. } | Self::Context { .. } => false,
            Self::Late(_) | Self::Panicked(..) | Self::Issued(..) | Self::Client { .. } => true,
        }
    }
}

/// A client, what it counts, and how often it may be used for calls.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) pulses: Pulses,
    pub(crate) limiter: Limiter,
    /// The address of the API.
    pub(crate) server: String,
    /// The authorities that vouch for it, as DER; empty where the host's own do.
    pub(crate) authorities: Vec<Vec<u8>>,
    /// The file that named it.
    pub(crate) kubeconfig: PathBuf,
    /// Differs between contents of that file.
    pub(crate) print: u64,
    /// What keeps us from changing anything where another host leads.
    pub(crate) fence: Fence,
    /// Where the cluster's Lease is.
    pub(crate) lease: LeaseName,
}

/// Reads a kubeconfig and makes a client of it. Nothing is sent yet, but an `exec` plugin may run.
/// It is waited for on a thread of its own, and not for ever.
pub(crate) async fn connect(
    kubeconfig: &Kubeconfig,
    api: &Api,
) -> Result<Connection, ConnectError> {
    let path = &kubeconfig.path;
    // Whoever writes another plugin into the file has mended it.
    let written = fs::metadata(path).and_then(|own| own.modified()).ok();
    let key = (path.clone(), kubeconfig.context.clone(), written);
    let mut making = Making::begun(key, || {
        let (own, api) = (kubeconfig.clone(), api.clone());
        let runtime = Handle::current();
        spawn_blocking(move || runtime.block_on(make(&own, &api)))
    });
    match timeout(MAKE, making.done()).await {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => Err(ConnectError::Panicked(path.clone(), error)),
        Err(_) => Err(ConnectError::Late(path.clone())),
    }
}

/// A kubeconfig's file, its context, and when it was written.
type Key = (PathBuf, Option<String>, Option<SystemTime>);
type Task = JoinHandle<Result<Connection, ConnectError>>;

/// A client that is being made. Nobody can end a plugin that its library runs, so none is begun
/// beside one that hangs: whoever does not wait any more leaves it to the next.
struct Making {
    key: Key,
    task: Option<Task>,
}

/// Those that nobody waits for.
static LEFT: Mutex<BTreeMap<Key, Vec<Task>>> = Mutex::new(BTreeMap::new());

impl Making {
    /// One that was left, else a new one.
    fn begun(key: Key, begin: impl FnOnce() -> Task) -> Self {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let task = left.get_mut(&key).and_then(Vec::pop);
        Self {
            key,
            task: Some(task.unwrap_or_else(begin)),
        }
    }

    async fn done(&mut self) -> Result<Result<Connection, ConnectError>, JoinError> {
        let Some(task) = &mut self.task else {
            return pending().await;
        };
        let made = task.await;
        self.task = None;
        made
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
            left.entry(self.key.clone()).or_default().push(task);
        }
    }
}

/// A cluster that is reached with tokens that somebody makes.
pub(crate) struct Issued {
    /// URL of its API.
    pub(crate) endpoint: String,
    /// The authorities that vouch for it, as PEM.
    pub(crate) ca: Vec<u8>,
    /// The token for the next request. Whoever makes it goes on while somebody reads it.
    pub(crate) token: watch::Receiver<String>,
}

/// A client of a cluster that has no kubeconfig. Nothing is sent yet.
pub(crate) fn connect_issued(issued: Issued, api: &Api) -> Result<Connection, ConnectError> {
    let Issued {
        endpoint,
        ca,
        token,
    } = issued;
    let fault = |why: String| ConnectError::Issued(endpoint.clone(), why);
    let url = endpoint
        .parse()
        .map_err(|_| fault("it is no URL".to_owned()))?;
    let certificates = CertificateDer::pem_slice_iter(&ca).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| fault(format!("its CA: {error}")))?;
    if certificates.is_empty() {
        return Err(fault("its CA holds no certificate".to_owned()));
    }
    let authorities: Vec<Vec<u8>> = certificates.into_iter().map(|own| own.to_vec()).collect();
    let mut config = Config::new(url);
    config.root_cert = Some(authorities.clone());
    limit(&mut config);
    lead(&mut config, api.proxy.as_ref());
    let mut print = DefaultHasher::new();
    (&endpoint, &authorities).hash(&mut print);
    let pulses = Pulses::default();
    let builder = ClientBuilder::try_from(config).map_err(|error| fault(error.to_string()))?;
    let bearer = MapRequestLayer::new(move |mut request: Request<Body>| {
        // A token that is no header is refused by the API, which says so.
        if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", *token.borrow())) {
            value.set_sensitive(true);
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        request
    });
    let fence = Fence::default();
    let builder = builder.with_layer(&fence).with_layer(&pulses);
    let client = builder.with_layer(&bearer).build();
    Ok(Connection {
        fence,
        lease: LeaseName::default(),
        client,
        pulses,
        limiter: Limiter::new(api.qps, api.burst),
        server: endpoint.trim_end_matches('/').to_owned(),
        authorities,
        kubeconfig: PathBuf::new(),
        print: print.finish(),
    })
}

/// The engine tries again, and decides anew before it does. A refused eviction comes as 429.
fn limit(config: &mut Config) {
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    config.default_retry = false;
}

/// Has requests go by a proxy, if one serves the API.
fn lead(config: &mut Config, proxy: Option<&Proxy>) {
    let Some(proxy) = proxy else { return };
    let host = config.cluster_url.host().unwrap_or_default();
    // Of this form it always is one.
    config.proxy_url = match proxy.serves(host) {
        true => proxy.with_credentials().parse().ok(),
        false => None,
    };
}

async fn make(kubeconfig: &Kubeconfig, api: &Api) -> Result<Connection, ConnectError> {
    let path = kubeconfig.path.as_path();
    let mut print = DefaultHasher::new();
    files::read_text(path)?.hash(&mut print);
    let file = read(path)?;
    let context = context_name(&file, kubeconfig);
    let options = KubeConfigOptions {
        context: kubeconfig.context.clone(),
        ..KubeConfigOptions::default()
    };
    let mut config = Config::from_custom_kubeconfig(file, &options)
        .await
        .map_err(|source| ConnectError::Context {
            path: path.to_owned(),
            context: context.clone(),
            source: Box::new(source),
        })?;
    limit(&mut config);
    lead(&mut config, api.proxy.as_ref());
    let server = config.cluster_url.to_string();
    let authorities = config.root_cert.clone().unwrap_or_default();
    let pulses = Pulses::default();
    let builder = ClientBuilder::try_from(config).map_err(|source| ConnectError::Client {
        path: path.to_owned(),
        context,
        source: Box::new(source),
    })?;
    let fence = Fence::default();
    let client = builder.with_layer(&fence).with_layer(&pulses).build();
    Ok(Connection {
        fence,
        lease: LeaseName::default(),
        client,
        pulses,
        limiter: Limiter::new(api.qps, api.burst),
        server: server.trim_end_matches('/').to_owned(),
        authorities,
        kubeconfig: path.to_owned(),
        print: print.finish(),
    })
}

fn read(path: &Path) -> Result<File, ConnectError> {
    File::read_from(path).map_err(|source| ConnectError::Read {
        path: path.to_owned(),
        source: Box::new(source),
    })
}

fn context_name(file: &File, kubeconfig: &Kubeconfig) -> String {
    let named = kubeconfig
        .context
        .as_deref()
        .or(file.current_context.as_deref());
    named.map_or("the context (none is named)".to_owned(), |it| {
        format!("the context {it:?}")
    })
}

#[cfg(test)]
impl Connection {
    /// One over whatever answers requests.
    pub(crate) fn over(client: Client) -> Self {
        Self {
            client,
            pulses: Pulses::default(),
            limiter: Limiter::new(1000, 1000),
            server: "https://api.test".to_owned(),
            authorities: vec![b"an authority".to_vec()],
            kubeconfig: PathBuf::new(),
            print: 0,
            fence: Fence::default(),
            lease: LeaseName::default(),
        }
    }
}
