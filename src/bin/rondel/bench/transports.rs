//! Transports by name.

use crate::stop::Stop;
use rondel_tcp::TcpTransport;
use rondel_transport_api::Transport;
use std::sync::Arc;

/// The transports of these names, in this order.
pub(crate) fn named(names: &[String]) -> Result<Vec<Arc<dyn Transport>>, Stop> {
    let built_in: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport)];
    let find = |name: &String| {
        let found = built_in.iter().find(|transport| transport.name().eq_ignore_ascii_case(name));
        found.cloned().ok_or_else(|| {
            let known: Vec<&str> = built_in.iter().map(|transport| transport.name()).collect();
            Stop::Usage(format!(
                "unknown transport {name:?} in --transport: this build has {}, which connect processes",
                known.join(", ")
            ))
        })
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_found_by_name() {
        assert_eq!(named(&["TCP".to_owned()]).unwrap()[0].name(), "tcp");
        let error = named(&["carrier-pigeon".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("\"carrier-pigeon\"") && error.contains("tcp"), "{error}");
    }
}
