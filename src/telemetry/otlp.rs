//! Traces: a span per engine pass, with its decisions and the resulting calls.
//!
//! Spans use their own target, which the log filters out. Without the feature `otlp`, or without a
//! collector, no spans are created.

use tracing::Span;

use crate::model::id::ClusterName;

/// The target that separates spans from log lines.
pub(crate) const TARGET: &str = "outrigger::trace";

/// Returns the span of a pass, which ends when the last command of the pass completes.
pub(crate) fn pass_span(cluster: &ClusterName) -> Span {
    tracing::info_span!(target: "outrigger::trace", parent: None, "pass", %cluster)
}

/// The span of a decision.
pub(crate) fn decision_span(pass: &Span) -> Span {
    tracing::info_span!(target: "outrigger::trace", parent: pass, "decide")
}

/// The span of a command. `outcome` is set on completion.
pub(crate) fn command_span(pass: &Span, command: &'static str) -> Span {
    tracing::info_span!(
        target: "outrigger::trace", parent: pass, "command", command,
        outcome = tracing::field::Empty
    )
}

/// Sends spans to a collector until dropped, then flushes the rest.
#[cfg(feature = "otlp")]
pub(crate) mod exporter {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use opentelemetry::KeyValue;
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter as Exporter};
    use tracing::Subscriber;
    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::layer::Layer;
    use tracing_subscriber::registry::LookupSpan;

    /// Timeout of sending spans.
    const LIMIT: Duration = Duration::from_secs(5);

    /// An exporter that logs its first failure after a success, because the SDK logs no failures.
    #[derive(Debug)]
    struct Heard<E> {
        exporter: E,
        fails: AtomicBool,
    }

    impl<E: Exporter> Exporter for Heard<E> {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            let sent = self.exporter.export(batch).await;
            let failed = self.fails.swap(sent.is_err(), Ordering::Relaxed);
            match &sent {
                Err(error) if !failed => tracing::warn!(%error, "cannot send traces"),
                Ok(()) if failed => tracing::info!("sending traces again"),
                _ => {}
            }
            sent
        }

        fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
            self.exporter.shutdown_with_timeout(timeout)
        }

        fn set_resource(&mut self, resource: &Resource) {
            self.exporter.set_resource(resource);
        }
    }

    /// Sends spans.
    pub(crate) struct Sender(SdkTracerProvider);

    impl Sender {
        /// Creates a sender to a collector. The sender does not connect yet.
        pub(crate) fn for_endpoint(endpoint: &str) -> Result<Self, ExporterBuildError> {
            let exporter = SpanExporter::builder().with_tonic();
            let exporter = exporter.with_endpoint(endpoint).with_timeout(LIMIT);
            Ok(Self::with_exporter(exporter.build()?))
        }

        pub(super) fn with_exporter(exporter: impl Exporter + 'static) -> Self {
            let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
            let resource = Resource::builder().with_service_name("outrigger");
            let provider = SdkTracerProvider::builder()
                .with_batch_exporter(Heard { exporter, fails: AtomicBool::new(false) })
                .with_resource(resource.with_attribute(version).build());
            Self(provider.build())
        }

        /// Returns the layer that records spans and the log lines within them.
        pub(crate) fn layer<S>(&self) -> impl Layer<S> + Send + Sync + use<S>
        where
            S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
        {
            let ours = filter_fn(|metadata| {
                let level = *metadata.level() <= tracing::Level::INFO;
                level && metadata.target().starts_with("outrigger")
            });
            let tracer = self.0.tracer("outrigger");
            tracing_opentelemetry::layer().with_tracer(tracer).with_filter(ours)
        }
    }

    impl Drop for Sender {
        fn drop(&mut self) {
            if let Err(error) = self.0.shutdown_with_timeout(LIMIT) {
                tracing::warn!(%error, "cannot send the last traces");
            }
        }
    }
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use std::future::{Future, ready};
    use std::io::Read;
    use std::net::TcpListener;
    use std::sync::{Arc, Mutex};
    use std::thread;

    use opentelemetry::Value;
    use opentelemetry_sdk::error::OTelSdkResult;
    use opentelemetry_sdk::trace::{SpanData, SpanExporter};
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::registry;

    use super::exporter::Sender;
    use super::{command_span, decision_span, pass_span};
    use crate::model::id::ClusterName;

    /// Keeps all exported spans.
    #[derive(Clone, Debug, Default)]
    struct KeptSpans(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for KeptSpans {
        fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
            self.0.lock().expect("no panic").extend(batch);
            ready(Ok(()))
        }
    }

    #[test]
    fn spans_are_sent_before_the_daemon_exits() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let received = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut preface = [0; 14];
            stream.read_exact(&mut preface).expect("the HTTP/2 preface");
            preface
        });
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let entered = runtime.enter();
        let sender = Sender::for_endpoint(&endpoint).expect("a sender");
        drop(entered);
        let subscriber = registry().with(sender.layer());
        tracing::subscriber::with_default(subscriber, || {
            drop(pass_span(&ClusterName::from("prod")))
        });
        drop(sender);
        assert_eq!(&received.join().expect("no panic"), b"PRI * HTTP/2.0");
    }

    #[test]
    fn pass_span_contains_decisions_and_commands() {
        let exporter = KeptSpans::default();
        let sender = Sender::with_exporter(exporter.clone());
        let subscriber = registry().with(sender.layer());
        tracing::subscriber::with_default(subscriber, || {
            let pass = pass_span(&ClusterName::from("prod"));
            decision_span(&pass).in_scope(|| tracing::info!(pool = "general", "planned claim"));
            let call = command_span(&pass, "launch");
            call.record("outcome", "done");
            drop(pass);
        });
        drop(sender);
        let spans = exporter.0.lock().expect("no panic").clone();
        let named = |name: &str| {
            let mut found = spans.iter().filter(|span| span.name == name);
            found.next().unwrap_or_else(|| panic!("no {name} in {spans:?}"))
        };
        let (pass, decide, call) = (named("pass"), named("decide"), named("command"));
        for child in [decide, call] {
            assert_eq!(child.parent_span_id, pass.span_context.span_id());
            assert_eq!(child.span_context.trace_id(), pass.span_context.trace_id());
        }
        let events: Vec<&str> = decide.events.iter().map(|event| event.name.as_ref()).collect();
        assert_eq!(events, ["planned claim"]);
        let has = |span: &SpanData, key: &str, value: &'static str| {
            let value = Value::from(value);
            assert!(
                span.attributes
                    .iter()
                    .any(|attribute| attribute.key.as_str() == key && attribute.value == value),
                "{key} in {span:?}"
            );
        };
        has(pass, "cluster", "prod");
        has(call, "command", "launch");
        has(call, "outcome", "done");
    }
}
