//! A connection to the API of one cluster, from a kubeconfig. TLS is verified, and every call has a
//! timeout.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig as File, KubeconfigError};
use kube::{Client, Config};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::sync::Mutex as Turn;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;
use tower::util::option_layer;

use crate::host::files::{self, FilesError};
use crate::host::text;
use crate::kubernetes::exec_credential::{self, Credentials, PluginError};
use crate::kubernetes::token_layer::{BearerToken, TokenLayer};
use crate::kubernetes::watch_activity::WatchActivity;
use crate::model::cluster::{ApiSettings, Kubeconfig};
use crate::model::id::LeaseName;
use crate::model::proxy::Proxy;
use crate::outbound::clock_skew::SkewGauge;
use crate::outbound::fence::{self, Fence};
use crate::outbound::rate_limiter::Limiter;

/// Timeout of a TCP connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout of writing a request.
const WRITE: Duration = Duration::from_secs(30);
/// Timeout of reading files.
const READ: Duration = Duration::from_secs(8);

/// Why a connection cannot be created.
#[derive(Debug, Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    File(#[from] FilesError),
    #[error("cannot use the kubeconfig {}", .0.display())]
    Plugin(PathBuf, #[source] PluginError),
    #[error(
        "cannot use the kubeconfig {}: Kubernetes removed the auth provider {name:?}; use its exec \
         plugin instead",
        path.display()
    )]
    Gone { path: PathBuf, name: String },
    #[error(
        "cannot use the kubeconfig {}: reading its files took more than {} s",
        .0.display(),
        READ.as_secs()
    )]
    Late(PathBuf),
    #[error("cannot use the kubeconfig {}", .0.display())]
    Panicked(PathBuf, #[source] JoinError),
    #[error("cannot read the kubeconfig {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("cannot use {context} of the kubeconfig {}", path.display())]
    Context {
        path: PathBuf,
        context: String,
        #[source]
        source: Box<KubeconfigError>,
    },
    #[error("cannot use the API at {0}: {1}")]
    Issued(String, String),
    #[error("cannot create a client for {context} of the kubeconfig {}", path.display())]
    Client {
        path: PathBuf,
        context: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl ConnectError {
    /// The stable code.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::File(_) => "kubeconfig-unreadable",
            Self::Read { .. } => "kubeconfig-invalid",
            Self::Context { .. } => "kubeconfig-context",
            Self::Late(_) | Self::Plugin(_, PluginError::Late) => "kubeconfig-late",
            Self::Panicked(..) => "kubeconfig-fault",
            Self::Issued(..) => "endpoint-invalid",
            Self::Plugin(..) | Self::Gone { .. } | Self::Client { .. } => "kubeconfig-credentials",
        }
    }

    /// Returns whether a retry may succeed. Errors in files do not resolve themselves.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::File(_) | Self::Read { .. } | Self::Context { .. } | Self::Gone { .. } => false,
            Self::Late(_)
            | Self::Panicked(..)
            | Self::Plugin(..)
            | Self::Issued(..)
            | Self::Client { .. } => true,
        }
    }
}

/// A client with watch counters and a rate limiter.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) activity: WatchActivity,
    pub(crate) limiter: Limiter,
    /// Clock skew between this host and the API server.
    pub(crate) skew: SkewGauge,
    /// The address of the API.
    pub(crate) server: String,
    /// The CA certificates of the API, as DER. Empty if the CAs of the system are used.
    pub(crate) authorities: Vec<Vec<u8>>,
    /// The kubeconfig.
    pub(crate) kubeconfig: PathBuf,
    /// Hash of the contents of the kubeconfig.
    pub(crate) print: u64,
    /// The `Fence` that prevents changes while another host is the leader.
    pub(crate) fence: Fence,
    /// Name and namespace of the Lease of the cluster.
    pub(crate) lease: LeaseName,
}

/// A cluster that is accessed with generated tokens.
pub(crate) struct TokenCluster {
    /// URL of the cluster's API.
    pub(crate) endpoint: String,
    /// The CA certificates of the cluster's API, as PEM.
    pub(crate) ca: Vec<u8>,
    pub(crate) bearer: TokenLayer,
}

/// Creates a client for a cluster without a kubeconfig. Sends nothing yet.
pub(crate) fn connect_issued(
    issued: TokenCluster,
    api: &ApiSettings,
) -> Result<Connection, ConnectError> {
    let TokenCluster { endpoint, ca, bearer } = issued;
    let fault = |why: String| ConnectError::Issued(endpoint.clone(), why);
    let url = endpoint.parse().map_err(|_| fault("not a URL".to_owned()))?;
    let certificates = CertificateDer::pem_slice_iter(&ca).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|error| fault(format!("invalid CA: {error}")))?;
    if certificates.is_empty() {
        return Err(fault("its CA contains no certificate".to_owned()));
    }
    let authorities: Vec<Vec<u8>> =
        certificates.into_iter().map(|certificate| certificate.to_vec()).collect();
    let mut config = Config::new(url);
    config.root_cert = Some(authorities.clone());
    let opened =
        open_connection(config, Some(bearer), api).map_err(|error| fault(error.to_string()))?;
    let mut print = DefaultHasher::new();
    (&endpoint, &authorities).hash(&mut print);
    Ok(Connection { print: print.finish(), ..opened })
}

/// Creates a client for a kubeconfig and the files that it references. Sends nothing yet.
fn open_connection(
    mut config: Config,
    bearer: Option<TokenLayer>,
    api: &ApiSettings,
) -> Result<Connection, Box<kube::Error>> {
    config.connect_timeout = Some(CONNECT);
    config.write_timeout = Some(WRITE);
    // The client does not retry, because the engine retries after a new decision. A refused
    // eviction returns 429.
    config.default_retry = false;
    set_proxy(&mut config, api.proxy.as_ref());
    let server = config.cluster_url.to_string();
    let authorities = config.root_cert.clone().unwrap_or_default();
    let (fence, activity, skew) =
        (Fence::default(), WatchActivity::default(), SkewGauge::default());
    let builder = ClientBuilder::try_from(config)?.with_layer(&skew);
    let builder = builder.with_layer(&fence).with_layer(&activity);
    Ok(Connection {
        client: builder.with_layer(&option_layer(bearer)).build(),
        activity,
        limiter: Limiter::new(api.qps, api.burst),
        skew,
        server: server.trim_end_matches('/').to_owned(),
        authorities,
        kubeconfig: PathBuf::new(),
        print: 0,
        fence,
        lease: LeaseName::default(),
    })
}

/// Sends requests through a proxy, if one is set for the API.
fn set_proxy(config: &mut Config, proxy: Option<&Proxy>) {
    let Some(proxy) = proxy else { return };
    let host = config.cluster_url.host().unwrap_or_default();
    // A URL of this form is always valid.
    config.proxy_url = match proxy.is_used_for(host) {
        true => proxy.with_credentials().parse().ok(),
        false => None,
    };
}

/// Reads a kubeconfig and creates a client. Sends nothing yet, but runs the exec plugin.
pub(crate) async fn connect(
    kubeconfig: &Kubeconfig,
    api: &ApiSettings,
) -> Result<Connection, ConnectError> {
    let path = kubeconfig.path.as_path();
    let (requested, runtime) = (kubeconfig.clone(), Handle::current());
    let Loaded { mut config, mut print, context } =
        read_on_thread(kubeconfig, move || runtime.block_on(load_kubeconfig(&requested))).await??;
    let server = config.cluster_url.to_string();
    let user = &mut config.auth_info;
    let bearer = add_plugin_credentials(path, &server, user).await?;
    // When the plugin returns a new certificate, a new client is created.
    user.client_certificate_data.hash(&mut print);
    let api = api.clone();
    let opened = read_on_thread(kubeconfig, move || open_connection(config, bearer, &api)).await?;
    let opened =
        opened.map_err(|source| ConnectError::Client { path: path.to_owned(), context, source })?;
    Ok(Connection { kubeconfig: path.to_owned(), print: print.finish(), ..opened })
}

/// The contents of a kubeconfig.
struct Loaded {
    config: Config,
    print: DefaultHasher,
    /// The context, for messages.
    context: String,
}

async fn load_kubeconfig(kubeconfig: &Kubeconfig) -> Result<Loaded, ConnectError> {
    let path = kubeconfig.path.as_path();
    let mut print = DefaultHasher::new();
    files::read_text(path)?.hash(&mut print);
    let file = read_kubeconfig(path)?;
    let context = context_name(&file, kubeconfig);
    let options =
        KubeConfigOptions { context: kubeconfig.context.clone(), ..KubeConfigOptions::default() };
    match Config::from_custom_kubeconfig(file, &options).await {
        Ok(config) => Ok(Loaded { config, print, context }),
        Err(source) => {
            Err(ConnectError::Context { path: path.to_owned(), context, source: Box::new(source) })
        }
    }
}

/// Locks, one per kubeconfig and context, while its files are read.
type Readers = BTreeMap<(PathBuf, Option<String>), Arc<Turn<()>>>;
static READERS: Mutex<Readers> = Mutex::new(BTreeMap::new());

/// Reads files on a separate thread, which cannot be cancelled if a read blocks. A later read of
/// the same kubeconfig waits for this thread and starts no second thread.
async fn read_on_thread<T: Send + 'static>(
    kubeconfig: &Kubeconfig,
    reading: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConnectError> {
    let path = &kubeconfig.path;
    let lock = {
        let mut readers = READERS.lock().unwrap_or_else(PoisonError::into_inner);
        readers.retain(|_, lock| Arc::strong_count(lock) > 1);
        let key = (path.clone(), kubeconfig.context.clone());
        readers.entry(key).or_default().clone()
    };
    let read = async {
        let lock = lock.lock_owned().await;
        let task = spawn_blocking(move || {
            let _turn = lock;
            reading()
        });
        task.await.map_err(|error| ConnectError::Panicked(path.clone(), error))
    };
    timeout(READ, read).await.unwrap_or_else(|_| Err(ConnectError::Late(path.clone())))
}

/// Runs the exec plugin if the kubeconfig has no other credentials, as kubectl does. kube would run
/// the plugin on a thread that cannot be cancelled, and several times concurrently.
async fn add_plugin_credentials(
    path: &Path,
    server: &str,
    user: &mut AuthInfo,
) -> Result<Option<TokenLayer>, ConnectError> {
    // kube would also run a command for an auth provider. Since Kubernetes 1.26 only `oidc` exists.
    if let Some(auth_provider) =
        user.auth_provider.as_ref().filter(|auth_provider| auth_provider.name != "oidc")
    {
        let name = text::bounded_line(&auth_provider.name);
        let path = path.to_owned();
        return Err(ConnectError::Gone { path, name });
    }
    let has_credentials = user.auth_provider.is_some()
        || user.username.is_some() && user.password.is_some()
        || user.token.is_some()
        || user.token_file.is_some();
    let Some(exec) = user.exec.take().filter(|_| !has_credentials) else {
        return Ok(None);
    };
    let first = exec_credential::request_credentials(&exec).await;
    let first = first.map_err(|error| ConnectError::Plugin(path.to_owned(), error))?;
    if let Some((certificate, key)) = &first.identity {
        user.client_certificate_data = Some(STANDARD.encode(certificate));
        user.client_key_data = Some(STANDARD.encode(key).into());
    }
    let Some(first) = bearer_token(first) else {
        return Ok(None);
    };
    Ok(Some(TokenLayer::start(server, first, move || {
        let exec = exec.clone();
        async move {
            let credentials = exec_credential::request_credentials(&exec).await;
            let credentials = credentials.map_err(PluginTokenError::Plugin)?;
            bearer_token(credentials).ok_or(PluginTokenError::NoToken)
        }
        .boxed()
    })))
}

/// Why the exec plugin returns no further token.
#[derive(Debug, Error)]
enum PluginTokenError {
    #[error("exec-plugin: {}", text::error_chain(.0))]
    Plugin(PluginError),
    #[error("exec-plugin: it printed no token")]
    NoToken,
}

fn bearer_token(credentials: Credentials) -> Option<BearerToken> {
    let until = credentials.until;
    credentials.token.map(|text| BearerToken { text, until })
}

fn read_kubeconfig(path: &Path) -> Result<File, ConnectError> {
    File::read_from(path)
        .map_err(|source| ConnectError::Read { path: path.to_owned(), source: Box::new(source) })
}

fn context_name(file: &File, kubeconfig: &Kubeconfig) -> String {
    let named = kubeconfig.context.as_deref().or(file.current_context.as_deref());
    named.map_or("the current context (not set)".to_owned(), |it| format!("the context {it:?}"))
}

impl Connection {
    /// The connection limited to one leadership term.
    pub(crate) fn limited_to_term(&self, term: u64) -> Self {
        let fence = self.fence.of_term(term);
        Self { client: fence::fenced_client(self.client.clone(), &fence), fence, ..self.clone() }
    }
}

#[cfg(test)]
impl Connection {
    /// Creates a connection over any service.
    pub(crate) fn from_client(client: Client) -> Self {
        Self {
            client,
            activity: WatchActivity::default(),
            limiter: Limiter::new(1000, 1000),
            skew: SkewGauge::default(),
            server: "https://api.test".to_owned(),
            authorities: vec![b"an authority".to_vec()],
            kubeconfig: PathBuf::new(),
            print: 0,
            fence: Fence::default(),
            lease: LeaseName::default(),
        }
    }
}
