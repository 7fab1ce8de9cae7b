// What services that start one container or task per node say about the nodes: SkyPilot, SageMaker, Vertex AI and
// TF_CONFIG; and Azure ML, which only tells where the first node is.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/node_list.h"

namespace lockstep::elastic {

// Where SageMaker puts what SM_* says, also into containers without its toolkit.
inline constexpr const char* kSageMakerFile = "/opt/ml/input/config/resourceconfig.json";

// nullopt: no such service, or a single node. Throws UserError on half of what is needed. The result is not checked for
// names that come twice.
std::optional<NodeList> nodes_of_service(const VariableLookup& lookup,
                                         const std::filesystem::path& sage_maker_file = kSageMakerFile);

// Nodes that only know the first one's address.
struct ServiceEndpoint {
  NodeAddress address;  // of node 0, with a port that all derive alike
  int nodes = 1;
  int node = 0;  // which this one is
  std::string source;
};
std::optional<ServiceEndpoint> endpoint_of_service(const VariableLookup& lookup);

}  // namespace lockstep::elastic
