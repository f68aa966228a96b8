"""Rules of tools and user simulators: names, code and descriptions."""

from ppojob_api.rules.rule import rules, words
from ppojob_api.well_known import BUILT_IN_AGENTS, BUILT_IN_INTERACTIONS, BUILT_IN_TOOLS

TOOL_RULES = rules(
    r"""
    spec | data.templateColumns | Conflict | here
        turns are rendered with data.applyChatTemplateKwargs; remove it, or agent
    when: has(self.agent)

    spec | agent.toolRewards | NoEffect | here
        certaintyReward ignores tool rewards; tell, or certaintyReward.besideScores: true
    when: !self.algorithm.certaintyReward.besideScores

    spec | agent.toolRewards | NoEffect | here
        distillation does not train on rewards; tell
    when: self.algorithm.type == 'distillation'

    spec.agent | cutTurns | NoEffect | here
        only turnTokens can cut a turn before the row ends; turnTokens, or end
    when: self.cutTurns == 'go_on'
    must: has(self.turnTokens)

    spec.agent | tools | Required | here
        there are no tools and no user simulator; the tools that it may call, or interactions
    must: self.tools.size() > 0 || self.interactions.size() > 0

    spec.agent | agents | NotOneOf | here
        agent.tools lacks some of its tools; names of tools that are there
    must: self.agents.all(one, !has(one.tools)
        || one.tools.all(name, self.tools.exists_one(tool, tool.name == name)))

    spec.agent | agents | Conflict | here
        format search_r1 calls the tool search, which it lacks; this tool among its tools
    must: self.agents.all(one, !has(one.format) || one.format != 'search_r1'
        || (has(one.tools) ? one.tools.exists_one(name, name == 'search')
            : self.tools.exists_one(tool, tool.name == 'search')))

    spec.agent | default | NotOneOf | here
        there is no agent of this name; one of $AGENTS, or a name in agent.agents
    must: self.default in $AGENT_WORDS || self.agents.exists_one(one, one.name == self.default)
        || !self.interactions.all(one, one.interface != 'agent_loop' || one.name != self.default)

    spec.agent | default | Required | here
        an agent loop answers only rows that name it; its name, for rows without agent_name
    when: self.interactions.size() > 0 && self.tools.size() == 0 && self.default == 'tool_agent'
        && !self.agents.exists_one(one, one.name == self.default)
    must: !self.interactions.all(one, one.interface == 'agent_loop')

    spec.agent | default | Conflict | here
        a query is a call of the tool search, and there is none; a tool of this name in agent.tools
    when: self.default == 'search_r1' && !self.agents.exists_one(one, one.name == 'search_r1')
    must: self.tools.exists_one(tool, tool.name == 'search')

    spec.agent | format | Conflict | here
        a query is a call of the tool search, and there is none; a tool of this name in agent.tools
    when: self.format == 'search_r1' && self.tools.size() + self.interactions.size() > 0
    must: !self.tools.all(one, one.name != 'search')

    spec.agent.tools[] | name | NotOneOf | here
        no tool of this name is built in; one of $TOOLS, or a source
    when: !has(self.source)
    must: self.name in $TOOL_WORDS

    spec.agent | tools | Required | here
        the tool search has no index; agent.retriever, or index or url in its config
    when: !has(self.retriever)
    must: self.tools.all(one, has(one.source) || one.name != 'search' || one.config.size() > 0)

    spec.agent | retriever | NoEffect | here
        no tool uses the retriever; the tool search without a source in agent.tools, or remove it
    must: !self.tools.all(one, has(one.source) || one.name != 'search')

    spec.agent | containers | NoEffect | here
        only the built-in tool bash runs in them; this tool in agent.tools, or remove it
    must: !self.tools.all(one, has(one.source) || one.name != 'bash')

    spec | agent.containers.startSeconds | OutOfRange | here
        rows start their containers in a stage; less than timeouts.stageSeconds
    when: has(self.agent) && has(self.agent.containers)
    must: self.agent.containers.startSeconds < self.timeouts.stageSeconds

    spec.agent | tools | NoEffect | here
        bash has no settings with agent.containers; remove its config
    when: has(self.containers)
    must: self.tools.all(one, has(one.source) || one.name != 'bash' || one.config.size() == 0)

    spec.agent.tools[] | description | Required | here
        the model is told of the tool by it; what the tool does
    when: has(self.source)

    spec.agent.tools[] | parameters | Required | here
        the model is told by it what to call the tool with; a JSON schema of `type: object`
    when: has(self.source)
    must: self.parameters.size() > 0

    spec.agent.tools[] | parameters | BadForm | here
        arguments are an object; a JSON schema of `type: object`
    when: self.parameters.size() > 0
    must: has(self.parameters.type) && self.parameters.type == 'object'

    spec.agent.tools[].source | | Conflict | here
        a call has one answer; exactly one of path, configMap, url and mcpServer
    must: $ONE_OF(path configMap url mcpServer)

    $CODE_MAPS | key | BadForm | here
        it is the name of a Python file; letters, digits, '.', '_' and '-', with .py at the end
    must: self.key.matches(r'^[-.\w]+[.]py$')

    spec.agent.tools[].source | tool | NoEffect | here
        it is a name at a server; remove it, or name the mcpServer
    when: !has(self.mcpServer)

    spec.agent | tools | NotOneOf | here
        no item of mcpServers has the name of its mcpServer; the name of one
    must: self.tools.all(one, !has(one.source) || !has(one.source.mcpServer) ||
        !self.mcpServers.all(server, server.name != one.source.mcpServer))

    spec.agent | mcpServers | NoEffect | here
        no tool names it; tools as `ppojob tools --mcp` prints them, or remove it
    must: self.mcpServers.all(server, !self.tools.all(one, !has(one.source) ||
        !has(one.source.mcpServer) || one.source.mcpServer != server.name))

    spec.agent.mcpServers[] | | Conflict | here
        a server is at one place; exactly one of url and command
    must: (has(self.url) ? 1 : 0) + (self.command.size() > 0 ? 1 : 0) == 1

    spec.agent.tools[].source | function | NoEffect | here
        it is in the file of path or configMap; remove it
    when: !has(self.path) && !has(self.configMap)

    spec.agent.mcpServers[] spec.agent.tools[].source | keyVariable | NoEffect | here
        only a url takes a key; remove it, or a url
    when: !has(self.url)

    spec.agent.tools[] | config | NoEffect | here
        only code of path or configMap has settings; remove it
    when: !has(self.source.path) && !has(self.source.configMap)

    spec.agent.interactions[] | name | NotOneOf | here
        no interaction of this name is built in; one of $INTERACTIONS, or a source
    when: !has(self.source)
    must: self.name in $INTERACTION_WORDS

    spec.agent.interactions[] | interface | NoEffect | here
        a built-in interaction is no program; remove it, or give a source
    when: !has(self.source) && self.name in $INTERACTION_WORDS

    spec.agent | tools | Conflict | here
        a program (interactions[].interface) brings its own tools; remove them
    when: !self.interactions.all(one, one.interface != 'openai')

    spec.agent.tools[] spec.agent.interactions[] | config | NoEffect | here
        a built-in tool or user simulator has no settings; remove it, or give a source
    when: !has(self.source) && self.name in $BUILT_IN_WORDS && !(self.name in ['bash', 'search'])

    spec.agent.tools[] spec.agent.interactions[] | source.function | Required | here
        the name ${self.name} is no name of Python; that of a function or class
    when: has(self.source) && (has(self.source.path) || has(self.source.configMap))
        && !has(self.source.function)
    must: self.name.matches(r'$IDENTIFIER')

    spec | roles.tools | NoEffect | here
        it has no effect without tools; remove it, or name some in agent.tools
    when: !has(self.agent) || self.agent.tools.size() + self.agent.interactions.size() == 0

    spec | roles.retriever | NoEffect | here
        it has no effect without a corpus; remove it, or say agent.retriever
    when: !has(self.agent) || !has(self.agent.retriever)
    """,
    CODE_MAPS="spec.rewards[].source.configMap spec.agent.tools[].source.configMap"
    " spec.agent.interactions[].source.configMap"
    " spec.algorithm.custom.source.configMap spec.algorithm.policyLoss.custom.source.configMap",
    TOOLS=", ".join(BUILT_IN_TOOLS),
    TOOL_WORDS=words(BUILT_IN_TOOLS),
    BUILT_IN_WORDS=words((*BUILT_IN_TOOLS, *BUILT_IN_INTERACTIONS)),
    AGENTS=", ".join(BUILT_IN_AGENTS),
    AGENT_WORDS=words(BUILT_IN_AGENTS),
    INTERACTIONS=", ".join(BUILT_IN_INTERACTIONS),
    INTERACTION_WORDS=words(BUILT_IN_INTERACTIONS),
    IDENTIFIER=r"^[^\W\d]\w*$",
)
