// The page of a notebook's output: the attention of each text.

import { attentionViewer } from "../shared/attention_viewer.js";
import { headsMap } from "../shared/heads_map.js";

document.body.append(attentionViewer({}).node, headsMap({ layers: 1, heads: 1 }).node);
